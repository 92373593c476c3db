"""Decisions, kept."""
