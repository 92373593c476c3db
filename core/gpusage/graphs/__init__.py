"""Model file or name -> ModelGraph, and ModelGraph <-> card.

Decisions: docs/decisions/graphs.md
"""
