"""What a site's store shows about a period: tallies, verdicts with their rules, lines and a page.

Decisions: docs/decisions/service.md
"""
