"""A card: a model's graph as JSON, which people keep in a file, and as a short text that travels with a job.

The JSON lists each kind of node once, then the sequence of kinds, then for each input of a node the distance back to
its producer: so a model's repeated blocks compress to almost nothing. A kind without ``in`` reads the first outputs of
its producers. The short text is this JSON, compressed and in base64. A user can forge a card, so it is only a hint:
every number in it has a limit, and a bad card only raises `GraphError`.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpusage.boundary.atomic_file import atomic_write
from gpusage.graphs.card.validation import VERSION, graph_from_document
from gpusage.graphs.model_files import MAXIMUM_NODES, printable, quoted, read_bounded_file
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node

try:
    import lzma
except ImportError:  # a Python may be built without it
    lzma = None  # type: ignore[assignment]

MAXIMUM_FILE_BYTES = 16 * 1024 * 1024
MAXIMUM_CARD_BYTES = 4096
"""Limit of a card from `encode`: it travels in a job's environment, which a workload manager stores for each job."""
MAXIMUM_TEXT_BYTES = 64 * 1024
"""Limit of a card for `decode`; higher, so that a later version may write longer cards."""
MAXIMUM_UNPACKED_BYTES = 1024 * 1024
MAXIMUM_VALUES = 200_000
MAXIMUM_KINDS = 2_000
"""Limit of kinds in a user's card; DenseNet-121 has 5,700 values and 261 kinds."""

# Characters of a model's source in a card.
_SHORT = 80
# Notes of a model in a card.
_NOTES = 6
_LZMA_MARK = b"\x5d"  # literal context 3, literal position 0, position 2: what the filter below always writes
_DICTIONARY_BYTES = 1024 * 1024
_MEMORY_BYTES = 8 * 1024 * 1024


def to_document(graph: ModelGraph) -> dict[str, Any]:
    """Return *graph* as the JSON of a card; `parse_graph` is the inverse."""
    # Equal nodes of repeated blocks become one kind, without their inputs where the producers imply them.
    kind_numbers: dict[tuple[Node, bool], int] = {}
    sequence = []
    for index, node in enumerate(graph.nodes):
        is_implied = all(
            producer >= 0 and graph.nodes[producer].outputs[:1] == (shape,)
            for producer, shape in zip(graph.producers[index], node.inputs, strict=True)
        )
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
        # The bulk comes last, in a fixed order: `_readable` relies on it.
        "kinds": [_kind_document(node, has_inputs=not is_implied) for node, is_implied in kind_numbers],
        "nodes": sequence,
        "producers": [
            [index - producer if producer >= 0 else producer for producer in row]
            for index, row in enumerate(graph.producers)
        ],
    }


def parse_graph(content: bytes, subject: str, maximum_kinds: int = MAXIMUM_NODES) -> ModelGraph:
    """Return the graph of the JSON *content*; *subject* begins the error messages.

    Raises:
        GraphError: *content* is not JSON, or `graph_from_document` rejects it.
    """
    # Brackets within brackets exhaust the stack before json finds another fault.
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        message = f"{subject} must be JSON that 'gpusage card' wrote; got something else. Make it again."
        raise GraphError(message) from error
    return graph_from_document(document, subject, maximum_kinds)


def compact_json(document: Mapping[str, Any]) -> str:
    """Return *document* as JSON without white space."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


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


def write_file(graph: ModelGraph, path: str | os.PathLike[str]) -> None:
    """Write *graph* to *path* as readable JSON, atomically."""
    try:
        atomic_write(Path(path), _readable(to_document(graph)))
    except OSError as error:
        message = f"Card {quoted(str(path))} must be writable; got: {error.strerror}. Choose another path."
        raise GraphError(message) from error


def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of a card file; its shapes are fixed, so *shape* must be empty.

    Raises:
        GraphError: The file is no card, or *shape* is not empty.
    """
    if shape:
        names = ", ".join(sorted(shape))
        message = f"Card {quoted(source)} must be used without shapes; got {printable(names)}. Make a new card."
        raise GraphError(message)
    return parse_graph(read_bounded_file(source, MAXIMUM_FILE_BYTES), f"Card {quoted(source)}")


def _readable(document: Mapping[str, Any]) -> str:
    """Return *document* as JSON with a line per kind of node, for people and for diffs."""
    lines = [f" {json.dumps(key)}: {compact_json(value)}" for key, value in document.items() if key != "kinds"]
    kinds = ",\n  ".join(json.dumps(kind, ensure_ascii=False) for kind in document["kinds"])
    # Nodes and producers stay last: they are long, and say little to people.
    lines.insert(-2, f' "kinds": [\n  {kinds}]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def encode(graph: ModelGraph) -> str:
    """Return *graph* as a base64 text of at most `MAXIMUM_CARD_BYTES`.

    Raises:
        GraphError: The graph is too irregular for so few bytes.
    """
    # A prediction needs neither a long source nor many notes; all other fields stay exact.
    source = graph.source if len(graph.source) <= _SHORT else "..." + graph.source[3 - _SHORT :]
    document = to_document(replace(graph, source=source, notes=graph.notes[:_NOTES]))
    text = base64.b64encode(compress(compact_json(document).encode())).decode()
    if len(text) > MAXIMUM_CARD_BYTES:
        message = (
            f"Card of model {quoted(graph.name)} must be at most {MAXIMUM_CARD_BYTES} bytes; got {len(text)}. "
            "Export a simpler graph; without a card a job stays as it is."
        )
        raise GraphError(message)
    if (kinds := len(document["kinds"])) > MAXIMUM_KINDS:
        message = (
            f"Card of model {quoted(graph.name)} must have at most {MAXIMUM_KINDS} kinds of nodes; got {kinds}. "
            "Export a simpler graph; without a card a job stays as it is."
        )
        raise GraphError(message)

    return text


def decode(text: str) -> ModelGraph:
    """Return the graph of the card *text*; the inverse of `encode`.

    Raises:
        GraphError: The text is not a card, or is larger than any card of ours.
    """
    return parse_document(decode_document(text))


def decode_document(text: str) -> bytes:
    """Return the JSON of a card, whose length bounds the memory of its graph.

    Raises:
        GraphError: As `decode`.
    """
    # The lengths are checked before the work that they cause: the text is a stranger's.
    if len(text) > MAXIMUM_TEXT_BYTES:
        message = f"Card must be at most {MAXIMUM_TEXT_BYTES} bytes of base64; got {len(text)}. Make it again."
        raise GraphError(message)

    try:
        packed = base64.b64decode(text.encode("ascii"), validate=True)
        content = decompress(packed, MAXIMUM_UNPACKED_BYTES)
    except ValueError as error:
        message = "Card must be the base64 text of 'gpusage card'; got something else. Make it again."
        raise GraphError(message) from error
    if content is None:
        message = f"Card must be whole and unpack to at most {MAXIMUM_UNPACKED_BYTES} bytes; it is not. Make it again."
        raise GraphError(message)
    # An upper bound on the values, counted before json makes Python objects of them.
    if (values := content.count(b",") + content.count(b"[")) > MAXIMUM_VALUES:
        message = f"Card must hold at most {MAXIMUM_VALUES} figures; got up to {values}. Make it again."
        raise GraphError(message)
    return content


def parse_document(content: bytes) -> ModelGraph:
    """Return the graph of a card's JSON.

    Raises:
        GraphError: As `decode`.
    """
    graph = parse_graph(content, "Card", MAXIMUM_KINDS)
    # Notes become part of a decision's record, and a user may forge many.
    return replace(graph, notes=graph.notes[:_NOTES])


def compress(content: bytes) -> bytes:
    """Return *content* compressed by zlib or LZMA, whichever is shorter; the first byte shows the method."""
    # zlib's first byte is 0x78, LZMA's `_LZMA_MARK`; small content is often shorter with zlib.
    deflated = zlib.compress(content, 9)
    if lzma is None:
        return deflated
    lzma_filter = {"id": lzma.FILTER_LZMA1, "dict_size": _DICTIONARY_BYTES, "lc": 3, "lp": 0, "pb": 2, "nice_len": 273}
    return min(lzma.compress(content, lzma.FORMAT_ALONE, filters=[lzma_filter]), deflated, key=len)


def decompress(packed: bytes, limit_bytes: int) -> bytes | None:
    """Return the content of *packed*; ``None`` if it is cut off or larger than *limit_bytes*.

    Raises:
        ValueError: *packed* is not from `compress`.
    """
    # One byte more than the limit shows that there is more, without unpacking it all.
    if packed.startswith(_LZMA_MARK):
        return _decompress_lzma(packed, limit_bytes)

    try:
        inflater = zlib.decompressobj()
        content = inflater.decompress(packed, limit_bytes + 1)
    except zlib.error as error:
        raise ValueError from error
    return content if inflater.eof and len(content) <= limit_bytes else None


def _decompress_lzma(packed: bytes, limit_bytes: int) -> bytes | None:
    if lzma is None:
        raise ValueError

    try:
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_MEMORY_BYTES)
        content = decompressor.decompress(packed, limit_bytes + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError from error
    return content if decompressor.eof and len(content) <= limit_bytes else None
