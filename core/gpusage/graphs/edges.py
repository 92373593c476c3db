"""Edge lists of graph networks: an input of two rows, or two inputs, where each edge starts and ends; and no batch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NAME = re.compile(r"(?i)(?:^|[^a-z])(?:edges?|adj|adjacency)(?:$|[^a-z]|ind|idx|list|attr)")
"""As a word of its own, ``edge_index``, ``edgeIndex``, ``adj_t``: in ``knowledge_ids``, two rows are a batch of two."""
_PAIRS = (("src", "dst"), ("edge_src", "edge_dst"), ("senders", "receivers"))
"""Names of two inputs, as DGL, e3nn and Jraph have them; ``row`` and ``col`` may be a batch of pairs."""
_ENDS = 2
"""Of an edge: the node where it starts, and that where it ends."""


def is_edge_list(name: str, sizes: Sequence[object], *, is_whole: bool) -> bool:
    """Tell whether an input of this name, these sizes and whole numbers or not lists the edges of a graph."""
    return is_whole and len(sizes) == _ENDS and sizes[0] == _ENDS and _NAME.search(name) is not None


def edge_inputs(inputs: Iterable[tuple[str, Sequence[object], bool]]) -> str:
    """Return which of *inputs*, each with its sizes and whether it is of whole numbers, list edges; ``""`` if none."""
    ends = set()
    for name, sizes, is_whole in inputs:
        if is_edge_list(name, sizes, is_whole=is_whole):
            return name
        if is_whole and len(sizes) == 1:
            ends.add(name)
    return next((f"{start} and {end}" for start, end in _PAIRS if {start, end} <= ends), "")


def edges_note(names: str) -> str:
    """Return what is said of a model that reads a graph."""
    return f"The model reads a graph, with its edges in {names}: a step is of one such graph, batch 1."
