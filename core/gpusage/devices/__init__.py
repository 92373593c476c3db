"""The GPU catalogue: data, and how a GPU is found in it.

Decisions: docs/decisions/devices.md
"""
