"""A `ModelGraph` <-> the JSON of its card, of any length.

It lists each kind of node once, then the sequence of kinds, then for each node's inputs how many nodes back their
producer stands, so that a model's repeated blocks compress to almost nothing. A kind without ``in`` reads just what its
producers write first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpusage.graphs.card.fields import VERSION, check_document
from gpusage.graphs.guard import MAXIMUM_NODES, printable
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node


def document_of(graph: ModelGraph) -> dict[str, Any]:
    """Return *graph* as the JSON of a card; `parsed` reads it."""
    numbers: dict[tuple[Node, bool], int] = {}
    plain = (_reads_what_is_made(graph, index) for index in range(len(graph.nodes)))
    keys = [
        (replace(node, inputs=()) if alike else node, alike) for node, alike in zip(graph.nodes, plain, strict=True)
    ]
    sequence = [numbers.setdefault(key, len(numbers)) for key in keys]
    own = {"trainable": graph.trainable} if graph.trainable != 1 else {}
    return {
        "gpusage_card": VERSION,
        "name": printable(graph.name),
        "source": printable(graph.source),
        "parameter_count": graph.parameter_count,
        "fixed_batch_size": graph.fixed_batch_size,
        "inputs": [[printable(name), shape] for name, shape in graph.inputs],
        "unknown_op_types": [[printable(name), count] for name, count in graph.unknown_op_types],
        "notes": [printable(note) for note in graph.notes],
        **own,
        **({"precision": graph.precision} if graph.precision else {}),
        "kinds": [_kind(node, alike=alike) for node, alike in numbers],
        "nodes": sequence,
        "producers": [
            [index - producer if producer >= 0 else producer for producer in row]
            for index, row in enumerate(graph.producers)
        ],
    }


def parsed(content: bytes, subject: str, most_kinds: int = MAXIMUM_NODES) -> ModelGraph:
    """Return the graph that the JSON *content* describes; *subject* is what errors are about.

    Raises:
        GraphError: It is not JSON, or `check_document` refuses it.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        message = f"{subject} must be JSON that 'gpusage card' wrote; got something else. Make it anew."
        raise GraphError(message) from error
    return check_document(document, subject, most_kinds)


def dumped(document: Mapping[str, Any]) -> str:
    """Return *document* as JSON in the fewest letters."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _reads_what_is_made(graph: ModelGraph, index: int) -> bool:
    """Tell whether a node's inputs are just what its producers write first, and so need not be said."""
    return all(
        producer >= 0 and graph.nodes[producer].outputs[:1] == (shape,)
        for producer, shape in zip(graph.producers[index], graph.nodes[index].inputs, strict=True)
    )


def _kind(node: Node, *, alike: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"op": node.op_type, "out": node.outputs}
    if not alike:
        fields["in"] = node.inputs
    if node.parameters:
        fields["par"] = node.parameters
    if node.attributes:
        fields["attr"] = dict(node.attributes)
    if node.element_type != "float":
        fields["type"] = node.element_type
    return fields
