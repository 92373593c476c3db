"""gpusage for Slurm.

Decisions: docs/decisions/slurm.md
"""
