"""Rules for each ONNX operator: output shapes from input shapes, and the small numbers behind shapes."""

from gpusage.graphs.onnx.shapes import elementwise, layers, layout
from gpusage.graphs.onnx.shapes.rule import RULES, Call, MismatchError, Result, UnresolvedError, Value

__all__ = ["RULES", "Call", "MismatchError", "Result", "UnresolvedError", "Value"]

RULE_MODULES = (elementwise, layers, layout)
"""Importing them registers their rules."""
