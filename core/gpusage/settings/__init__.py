"""The settings of a site, and their file.

Decisions: docs/decisions/hooks.md
"""
