"""Capacity and joint schedule: which nodes are active, of which type, and which jobs have their GPUs, and when.

Decisions: docs/decisions/planning.md
"""
