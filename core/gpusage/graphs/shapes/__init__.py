"""What each ONNX operator makes of its inputs' shapes, and of the small numbers that shapes are computed from."""

from gpusage.graphs.shapes import elementwise, layers, layout, made, pictures
from gpusage.graphs.shapes.rule import RULES, Call, MismatchError, Result, UnresolvedError, Value

__all__ = ["RULES", "Call", "MismatchError", "Result", "UnresolvedError", "Value"]

RULE_MODULES = (elementwise, layers, layout, made, pictures)
"""Importing them registers their rules."""
