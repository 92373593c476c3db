"""The experience of a site's own runs, of jobs with a model and without, and its use for the next job.

Decisions: docs/decisions/experience.md
"""
