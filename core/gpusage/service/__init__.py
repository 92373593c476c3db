"""gpusaged: the local daemon that adapters ask.

Decisions: docs/decisions/service.md
"""
