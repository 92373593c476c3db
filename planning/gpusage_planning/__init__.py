"""What an operator does at a desk: simulate policies on a trace, replay it on a real scheduler, plan capacity.

Decisions: docs/decisions/planning.md
"""
