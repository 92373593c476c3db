"""Each ONNX operator's output shapes from its input shapes, and the small numbers that shapes are computed from."""

from gpusage.graphs.onnx.shapes import constants, elementwise, images, layers, layout, runtime
from gpusage.graphs.onnx.shapes.rule import RULES, Call, MismatchError, Result, UnresolvedError, Value

__all__ = ["RULES", "Call", "MismatchError", "Result", "UnresolvedError", "Value"]

RULE_MODULES = (constants, elementwise, images, layers, layout, runtime)
"""Importing them registers their rules."""
