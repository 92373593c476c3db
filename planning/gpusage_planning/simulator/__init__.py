"""A discrete-event simulator of a GPU cluster: what a policy would do to a trace of jobs.

Decisions: docs/decisions/planning.md
"""
