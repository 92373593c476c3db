"""Emulated jobs on a real scheduler: what sharing by prediction gains there, beside what the simulator predicts.

Decisions: docs/decisions/planning.md
"""
