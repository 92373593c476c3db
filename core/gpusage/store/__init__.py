"""The store of decisions and usage.

Decisions: docs/decisions/service.md
"""
