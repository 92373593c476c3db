"""Decisions and usage, kept."""
