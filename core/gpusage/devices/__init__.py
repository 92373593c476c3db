"""Devices of gpusage."""
