"""A card: a model's graph as one short text that travels with a job.

A card is JSON, compressed and in base64. It lists each kind of node once, then the sequence of kinds, then for each
node's inputs how many nodes back their producer stands, so that a model's repeated blocks compress to almost nothing. A
kind without ``in`` reads just what its producers write first.
What is read from a card is a hint that a user can forge: every figure in it has a limit, and nothing else can happen
than `GraphError`.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpusage.graphs.card.fields import VERSION, check_document
from gpusage.graphs.card.packing import pack, unpack
from gpusage.graphs.guard import MAXIMUM_NODES, printable, read_whole, shown
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node

SUFFIX = ".card.json"
MAXIMUM_CARD_BYTES = 4096
MAXIMUM_TEXT_BYTES = 64 * 1024
MAXIMUM_UNPACKED_BYTES = 1024 * 1024
MAXIMUM_VALUES = 200_000
MAXIMUM_KINDS = 2_000
"""Of a card that came from a user; DenseNet-121 has 5,700 values and 261 kinds."""
MAXIMUM_FILE_BYTES = 16 * 1024 * 1024

_SHORT = 80
_NOTES = 6


def encode(graph: ModelGraph) -> str:
    """Return *graph* as one base64 text of at most 4096 bytes.

    Everything that a prediction needs is kept exactly; the source and the notes are cut where they are long.

    Raises:
        GraphError: The graph is too irregular to be said in so few bytes.
    """
    document = document_of(replace(graph, source=_tail(graph.source), notes=graph.notes[:_NOTES]))
    text = base64.b64encode(pack(_dumped(document).encode())).decode()
    if len(text) > MAXIMUM_CARD_BYTES:
        message = (
            f"Card of model {shown(graph.name)} must be at most {MAXIMUM_CARD_BYTES} bytes; got {len(text)}. "
            "Export a simpler graph; without a card a job stays as it is."
        )
        raise GraphError(message)
    if (kinds := len(document["kinds"])) > MAXIMUM_KINDS:
        message = (
            f"Card of model {shown(graph.name)} must have at most {MAXIMUM_KINDS} kinds of nodes; got {kinds}. "
            "Export a simpler graph; without a card a job stays as it is."
        )
        raise GraphError(message)
    return text


def decode(text: str) -> ModelGraph:
    """Return the graph that `encode` wrote as *text*.

    Raises:
        GraphError: The text is not a card, or is larger than any card of ours.
    """
    return graph_of(unpacked(text))


def unpacked(text: str) -> bytes:
    """Return the JSON that a card holds; its length says what keeping the graph may take.

    Raises:
        GraphError: As `decode`.
    """
    if len(text) > MAXIMUM_TEXT_BYTES:
        message = f"Card must be at most {MAXIMUM_TEXT_BYTES} bytes of base64; got {len(text)}. Make it anew."
        raise GraphError(message)
    try:
        packed = base64.b64decode(text.encode("ascii"), validate=True)
        content = unpack(packed, MAXIMUM_UNPACKED_BYTES)
    except ValueError as error:
        message = "Card must be the base64 text of 'gpusage card'; got something else. Make it anew."
        raise GraphError(message) from error
    if content is None:
        message = f"Card must be whole and unpack to at most {MAXIMUM_UNPACKED_BYTES} bytes; it does not. Make it anew."
        raise GraphError(message)
    if (values := content.count(b",") + content.count(b"[")) > MAXIMUM_VALUES:
        message = f"Card must hold at most {MAXIMUM_VALUES} figures; got up to {values}. Make it anew."
        raise GraphError(message)
    return content


def graph_of(content: bytes) -> ModelGraph:
    """Return the graph that the JSON of a card describes.

    Raises:
        GraphError: As `decode`.
    """
    graph = _parsed(content, "Card", MAXIMUM_KINDS)
    return replace(graph, notes=graph.notes[:_NOTES])  # each goes into the record of a decision


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


def document_of(graph: ModelGraph) -> dict[str, Any]:
    """Return *graph* as the JSON of a card, of any length; `card_fields.check_document` reads it."""
    numbers: dict[tuple[Node, bool], int] = {}
    plain = (_reads_what_is_made(graph, index) for index in range(len(graph.nodes)))
    keys = [
        (replace(node, inputs=()) if alike else node, alike) for node, alike in zip(graph.nodes, plain, strict=True)
    ]
    sequence = [numbers.setdefault(key, len(numbers)) for key in keys]
    return {
        "gpusage_card": VERSION,
        "name": printable(graph.name),
        "source": printable(graph.source),
        "parameter_count": graph.parameter_count,
        "fixed_batch_size": graph.fixed_batch_size,
        "inputs": [[printable(name), shape] for name, shape in graph.inputs],
        "unknown_op_types": [[printable(name), count] for name, count in graph.unknown_op_types],
        "notes": [printable(note) for note in graph.notes],
        "kinds": [_kind(node, alike=alike) for node, alike in numbers],
        "nodes": sequence,
        "producers": [
            [index - made if made >= 0 else made for made in row] for index, row in enumerate(graph.producers)
        ],
    }


def write_file(graph: ModelGraph, path: str | os.PathLike[str]) -> None:
    """Write *graph* to *path* as readable JSON, whole or not at all."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(_readable(document_of(graph)), encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        message = f"Card {shown(str(path))} must be writable; got: {error.strerror}. Choose another path."
        raise GraphError(message) from error


@hookimpl(trylast=True)
def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph | None:
    """Read a card that `write_file` saved; its shapes are resolved already, so *shape* must be empty."""
    if not source.endswith(SUFFIX):
        return None
    if shape:
        names = ", ".join(sorted(shape))
        message = f"Card {shown(source)} must be used without shapes; got {printable(names)}. Make a new card."
        raise GraphError(message)
    return _parsed(read_whole(source, MAXIMUM_FILE_BYTES), f"Card {shown(source)}")


def _reads_what_is_made(graph: ModelGraph, index: int) -> bool:
    """Tell whether a node's inputs are just what its producers write first, and so need not be said."""
    return all(
        made >= 0 and graph.nodes[made].outputs[:1] == (shape,)
        for made, shape in zip(graph.producers[index], graph.nodes[index].inputs, strict=True)
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


def _dumped(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _readable(document: Mapping[str, Any]) -> str:
    """Return *document* with one kind a line, which people can read and programs can parse."""
    lines = [f" {json.dumps(key)}: {_dumped(value)}" for key, value in document.items() if key != "kinds"]
    kinds = ",\n  ".join(json.dumps(kind, ensure_ascii=False) for kind in document["kinds"])
    lines.insert(-2, f' "kinds": [\n  {kinds}]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _parsed(content: bytes, subject: str, most_kinds: int = MAXIMUM_NODES) -> ModelGraph:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        message = f"{subject} must be JSON that 'gpusage card' wrote; got something else. Make it anew."
        raise GraphError(message) from error
    return check_document(document, subject, most_kinds)


def _tail(source: str) -> str:
    return source if len(source) <= _SHORT else "..." + source[3 - _SHORT :]
