"""Calls no model."""

print("nothing to do")
