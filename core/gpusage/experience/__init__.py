"""What a site's own runs show, of jobs that name a model and of jobs that name none, and what follows for the next.

Decisions: docs/decisions/experience.md
"""
