"""A card: a model's graph as JSON, which people keep in a file, and as one short text that travels with a job.

The JSON lists each kind of node once, then the sequence of kinds, then for each input of a node how many nodes back
its producer is: so a model's repeated blocks compress to almost nothing. A kind without ``in`` reads the first outputs
of its producers. The short text is this JSON, compressed and in base64. A user can forge one, so it is only a hint:
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
"""Of a card that we write: it travels in a job's environment, which a workload manager stores for each job."""
MAXIMUM_TEXT_BYTES = 64 * 1024
"""Of a card that we read; more than we write, so that a later version may write longer ones."""
MAXIMUM_UNPACKED_BYTES = 1024 * 1024
MAXIMUM_VALUES = 200_000
MAXIMUM_KINDS = 2_000
"""Of a card that came from a user; DenseNet-121 has 5,700 values and 261 kinds."""

# Characters of a model's source in a card.
_SHORT = 80
# Notes of a model in a card.
_NOTES = 6
_LZMA_MARK = b"\x5d"  # literal context 3, literal position 0, position 2: what the filter below always writes
_DICTIONARY_BYTES = 1024 * 1024
_MEMORY_BYTES = 8 * 1024 * 1024


def to_document(graph: ModelGraph) -> dict[str, Any]:
    """Return *graph* as the JSON of a card; `parse_graph` is the inverse."""
    kind_numbers: dict[tuple[Node, bool], int] = {}
    sequence = []
    # Nodes that differ only in inputs which their producers imply are one kind: there are far fewer kinds so.
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


def write_file(graph: ModelGraph, path: str | os.PathLike[str]) -> None:
    """Write *graph* to *path* as readable JSON, atomically."""
    try:
        atomic_write(Path(path), _readable(to_document(graph)))
    except OSError as error:
        message = f"Card {quoted(str(path))} must be writable; got: {error.strerror}. Choose another path."
        raise GraphError(message) from error


def read_model(source: str, shape: Mapping[str, Sequence[int]]) -> ModelGraph:
    """Return the graph of a card that `write_file` wrote; its shapes are fixed, so *shape* must be empty.

    Raises:
        GraphError: It is no such card, or *shape* is not empty.
    """
    if shape:
        names = ", ".join(sorted(shape))
        message = f"Card {quoted(source)} must be used without shapes; got {printable(names)}. Make a new card."
        raise GraphError(message)
    return parse_graph(read_bounded_file(source, MAXIMUM_FILE_BYTES), f"Card {quoted(source)}")


def _readable(document: Mapping[str, Any]) -> str:
    """Return *document* as JSON with one kind of node per line, for people and for diffs."""
    lines = [f" {json.dumps(key)}: {compact_json(value)}" for key, value in document.items() if key != "kinds"]
    kinds = ",\n  ".join(json.dumps(kind, ensure_ascii=False) for kind in document["kinds"])
    # Nodes and producers stay last: they are long, and say little to people.
    lines.insert(-2, f' "kinds": [\n  {kinds}]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def encode(graph: ModelGraph) -> str:
    """Return *graph* as one base64 text of at most `MAXIMUM_CARD_BYTES`.

    All that a prediction needs is exact; a long source and many notes are cut.

    Raises:
        GraphError: The graph is too irregular for so few bytes.
    """
    # A path of a user may be long, and says nothing that a prediction needs.
    document = to_document(replace(graph, source=_tail(graph.source), notes=graph.notes[:_NOTES]))
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
    """Return the graph that `encode` wrote as *text*.

    Raises:
        GraphError: The text is not a card, or is larger than any card of ours.
    """
    return parse_document(decode_document(text))


def decode_document(text: str) -> bytes:
    """Return the JSON of a card; its length bounds the memory that its graph takes.

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
    # Each figure becomes an object: their number bounds the memory before json parses them.
    if (values := content.count(b",") + content.count(b"[")) > MAXIMUM_VALUES:
        message = f"Card must hold at most {MAXIMUM_VALUES} figures; got up to {values}. Make it again."
        raise GraphError(message)
    return content


def parse_document(content: bytes) -> ModelGraph:
    """Return the graph that the JSON of a card describes.

    Raises:
        GraphError: As `decode`.
    """
    graph = parse_graph(content, "Card", MAXIMUM_KINDS)
    return replace(graph, notes=graph.notes[:_NOTES])  # each becomes part of a decision's record


def _tail(source: str) -> str:
    return source if len(source) <= _SHORT else "..." + source[3 - _SHORT :]


def compress(content: bytes) -> bytes:
    """Return *content* compressed by zlib or LZMA, whichever is shorter; the first byte names the method."""
    # For a small graph zlib is shorter: LZMA's header alone has 13 bytes.
    deflated = zlib.compress(content, 9)
    if lzma is None:
        return deflated
    # nice_len 273 is the longest match of LZMA: repeated blocks of a model are long matches.
    way = {"id": lzma.FILTER_LZMA1, "dict_size": _DICTIONARY_BYTES, "lc": 3, "lp": 0, "pb": 2, "nice_len": 273}
    return min(lzma.compress(content, lzma.FORMAT_ALONE, filters=[way]), deflated, key=len)


def decompress(packed: bytes, limit_bytes: int) -> bytes | None:
    """Return the content of what `compress` returned, ``None`` if it is cut off or larger than *limit_bytes*.

    Raises:
        ValueError: `compress` did not make it.
    """
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
