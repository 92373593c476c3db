"""What a job should ask for, by what it needs: one policy for each stage of a decision.

Decisions: docs/decisions/policies.md
"""
