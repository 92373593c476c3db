"""gpusage's adapter to Hadoop YARN.

Decisions: docs/decisions/yarn.md
"""
