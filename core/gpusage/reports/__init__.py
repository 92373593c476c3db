"""Reports on a period of a site's store: tallies, verdicts with their rules, lines and a page.

Decisions: docs/decisions/service.md
"""
