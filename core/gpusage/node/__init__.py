"""Programs of a GPU node: the sampler of usage, and the division of GPUs among jobs.

Decisions: docs/decisions/node.md
"""
