"""Policies of gpusage."""
