"""The laboratory: what measures workloads, fits and scores the predictors; nothing that predicts imports it.

Decisions: docs/decisions/lab.md
"""
