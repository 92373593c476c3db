"""From a submission to its decision: what the model needs, what the policies choose, what its user is shown.

Decisions: docs/decisions/decisions.md
"""
