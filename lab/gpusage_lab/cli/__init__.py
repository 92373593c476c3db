"""The commands `gpusage profile`, `train` and `evaluate`."""
