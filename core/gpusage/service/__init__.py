"""Service of gpusage."""
