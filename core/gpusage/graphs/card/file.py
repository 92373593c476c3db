"""A `ModelGraph` <-> the JSON of its card, of any length, and the file that people keep.

The JSON lists each kind of node once, then the sequence of kinds, then for each input of a node how many nodes back
its producer is: so a model's repeated blocks compress to almost nothing. A kind without ``in`` reads the first outputs
of its producers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpusage.boundary.atomic_file import atomic_write
from gpusage.graphs.card.validation import VERSION, graph_from_document
from gpusage.graphs.model_files import MAXIMUM_NODES, printable, quoted, read_bounded_file
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node


def to_document(graph: ModelGraph) -> dict[str, Any]:
    """Return *graph* as the JSON of a card; `parse_graph` is the inverse."""
    kind_numbers: dict[tuple[Node, bool], int] = {}
    sequence = []
    for index, node in enumerate(graph.nodes):
        is_implied = _has_implied_inputs(graph, index)
        kind = (replace(node, inputs=()) if is_implied else node, is_implied)
        sequence.append(kind_numbers.setdefault(kind, len(kind_numbers)))
    return {
        "gpusage_card": VERSION,
        "name": printable(graph.name),
        "source": printable(graph.source),
        "parameter_count": graph.parameter_count,
        "fixed_batch_size": graph.fixed_batch_size,
        "inputs": [[printable(name), shape] for name, shape in graph.inputs],
        "unknown_op_types": [[printable(name), count] for name, count in graph.unknown_op_types],
        "notes": [printable(note) for note in graph.notes],
        **({"trainable": graph.trainable} if graph.trainable != 1 else {}),
        **({"precision": graph.precision} if graph.precision else {}),
        "kinds": [_kind_document(node, has_inputs=not is_implied) for node, is_implied in kind_numbers],
        "nodes": sequence,
        "producers": [
            [index - producer if producer >= 0 else producer for producer in row]
            for index, row in enumerate(graph.producers)
        ],
    }


def parse_graph(content: bytes, subject: str, maximum_kinds: int = MAXIMUM_NODES) -> ModelGraph:
    """Return the graph that the JSON *content* describes; *subject* is what errors are about.

    Raises:
        GraphError: It is not JSON, or `graph_from_document` rejects it.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        message = f"{subject} must be JSON that 'gpusage card' wrote; got something else. Make it again."
        raise GraphError(message) from error
    return graph_from_document(document, subject, maximum_kinds)


def compact_json(document: Mapping[str, Any]) -> str:
    """Return *document* as JSON without white space."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _has_implied_inputs(graph: ModelGraph, index: int) -> bool:
    """Return whether a node's inputs are the first outputs of its producers, so that a card need not list them."""
    return all(
        producer >= 0 and graph.nodes[producer].outputs[:1] == (shape,)
        for producer, shape in zip(graph.producers[index], graph.nodes[index].inputs, strict=True)
    )


def _kind_document(node: Node, *, has_inputs: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"op": node.op_type, "out": node.outputs}
    if has_inputs:
        fields["in"] = node.inputs
    if node.parameters:
        fields["par"] = node.parameters
    if node.attributes:
        fields["attr"] = dict(node.attributes)
    if node.element_type != "float":
        fields["type"] = node.element_type
    return fields


SUFFIX = ".card.json"
MAXIMUM_FILE_BYTES = 16 * 1024 * 1024


def write_file(graph: ModelGraph, path: str | os.PathLike[str]) -> None:
    """Write *graph* to *path* as readable JSON, atomically."""
    try:
        atomic_write(Path(path), _readable(to_document(graph)))
    except OSError as error:
        message = f"Card {quoted(str(path))} must be writable; got: {error.strerror}. Choose another path."
        raise GraphError(message) from error


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read a card that `write_file` wrote; its shapes are fixed, so *shape* must be empty."""
    if not source.endswith(SUFFIX):
        return None
    if shape:
        names = ", ".join(sorted(shape))
        message = f"Card {quoted(source)} must be used without shapes; got {printable(names)}. Make a new card."
        raise GraphError(message)
    return parse_graph(read_bounded_file(source, MAXIMUM_FILE_BYTES), f"Card {quoted(source)}")


def _readable(document: Mapping[str, Any]) -> str:
    """Return *document* as JSON with one kind of node per line, for people and for diffs."""
    lines = [f" {json.dumps(key)}: {compact_json(value)}" for key, value in document.items() if key != "kinds"]
    kinds = ",\n  ".join(json.dumps(kind, ensure_ascii=False) for kind in document["kinds"])
    lines.insert(-2, f' "kinds": [\n  {kinds}]')
    return "{\n" + ",\n".join(lines) + "\n}\n"
