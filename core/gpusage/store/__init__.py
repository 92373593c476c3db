"""Store of gpusage."""
