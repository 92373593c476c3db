"""Graphs of gpusage."""
