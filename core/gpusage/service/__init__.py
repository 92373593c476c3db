"""gpusaged: the local daemon that adapters ask."""
