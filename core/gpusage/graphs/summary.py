"""A model's summary: the few figures that a person asks for first."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpusage_hooks.types import ModelGraph


def summary(graph: ModelGraph) -> dict[str, Any]:
    """Return what a person or a program wants to know of *graph*, ready for JSON."""
    return {
        "name": graph.name,
        "source": graph.source,
        "node_count": len(graph.nodes),
        "kind_count": len(set(graph.nodes)),
        "parameter_count": graph.parameter_count,
        "inputs": {name: list(shape) for name, shape in graph.inputs},
        "fixed_batch_size": graph.fixed_batch_size,
        "op_types": dict(Counter(node.op_type for node in graph.nodes).most_common()),
        "unknown_op_types": dict(graph.unknown_op_types),
        "notes": list(graph.notes),
    }
