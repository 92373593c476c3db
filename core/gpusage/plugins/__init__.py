"""Which plugins there are, and how they are asked.

Decisions: docs/decisions/hooks.md
"""
