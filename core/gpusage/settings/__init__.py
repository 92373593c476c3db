"""What a site can set, and the file that it is read from.

Decisions: docs/decisions/hooks.md
"""
