"""A card: a model's graph as one short text that travels with a job.

A card is the JSON of `document`, compressed and in base64.
A user can forge a card, so it is only a hint: every figure in it has a limit, and a bad card only raises `GraphError`.
"""

from __future__ import annotations

import base64
from dataclasses import replace

from gpusage.graphs.card.document import document_of, dumped, parsed
from gpusage.graphs.card.packing import pack, unpack
from gpusage.graphs.guard import shown
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

MAXIMUM_CARD_BYTES = 4096
MAXIMUM_TEXT_BYTES = 64 * 1024
MAXIMUM_UNPACKED_BYTES = 1024 * 1024
MAXIMUM_VALUES = 200_000
MAXIMUM_KINDS = 2_000
"""Of a card that came from a user; DenseNet-121 has 5,700 values and 261 kinds."""

_SHORT = 80
"""Characters of a model's source in a card."""
_NOTES = 6
"""Notes of a model in a card."""


def encode(graph: ModelGraph) -> str:
    """Return *graph* as one base64 text of at most 4096 bytes.

    Everything that a prediction needs is kept exactly; the source and the notes are cut where they are long.

    Raises:
        GraphError: The graph is too irregular to be said in so few bytes.
    """
    document = document_of(replace(graph, source=_tail(graph.source), notes=graph.notes[:_NOTES]))
    text = base64.b64encode(pack(dumped(document).encode())).decode()
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
    graph = parsed(content, "Card", MAXIMUM_KINDS)
    return replace(graph, notes=graph.notes[:_NOTES])  # each goes into the record of a decision


def _tail(source: str) -> str:
    return source if len(source) <= _SHORT else "..." + source[3 - _SHORT :]
