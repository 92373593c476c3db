"""Edge lists of graph networks: an input of two rows, where each edge starts and where it ends, and no batch."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NAME = re.compile(r"(?i)(?:^|[^a-z])(?:edges?|adj|adjacency)(?:$|[^a-z]|ind|idx|list|attr)")
"""As a word of its own, ``edge_index``, ``edgeIndex``, ``adj_t``: in ``knowledge_ids``, two rows are a batch of two."""
_ENDS = 2
"""Of an edge: the node where it starts, and that where it ends."""


def is_edge_list(name: str, sizes: Sequence[object], *, is_whole: bool) -> bool:
    """Tell whether an input of this name, these sizes and whole numbers or not lists the edges of a graph."""
    return is_whole and len(sizes) == _ENDS and sizes[0] == _ENDS and _NAME.search(name) is not None


def edges_note(name: str) -> str:
    """Return what is said of a model that reads a graph."""
    return f"The model reads a graph, whose edges {name} lists: a step is of one such graph, batch 1."
