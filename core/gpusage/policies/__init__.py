"""The request that suits a job's need: a policy for each stage of a decision.

Decisions: docs/decisions/policies.md
"""
