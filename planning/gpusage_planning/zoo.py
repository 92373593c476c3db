"""The zoo: cards of the models that the public measurements name, in one file, so that training needs no torch.

Invariants:

1. A key is ``library:name@size``; the size is an image's side or a sequence's length.
2. The same cards give the same bytes, whatever order they were made in.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from gpusage.graphs.card.validation import graph_from_document
from gpusage_hooks.types import ModelGraph

FILE_NAME = "zoo.xz"
MAXIMUM_FILE_BYTES = 10_000_000


class Zoo:
    """The cards by key; a graph is made when it is first asked for, and then kept."""

    def __init__(self, cards: Mapping[str, str]) -> None:
        self._cards = cards
        self._graphs: dict[str, ModelGraph] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._cards

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards)

    def __len__(self) -> int:
        return len(self._cards)

    def graph(self, key: str) -> ModelGraph:
        """Return the graph of *key*, the same object each time.

        Raises:
            KeyError: There is no such card; a bug of the caller, who can ask with ``in``.
        """
        if key not in self._graphs:
            self._graphs[key] = graph_from_document(json.loads(self._cards[key]), f"Card {key}")
        return self._graphs[key]

    @property
    def cards(self) -> Mapping[str, str]:
        """Each key's card, as JSON."""
        return self._cards


@lru_cache(maxsize=1)
def load_zoo() -> Zoo:
    """Return the zoo that comes with gpusage."""
    return unpack(files("gpusage_planning").joinpath(FILE_NAME).read_bytes())


def key_of_profiled(model: str, shape: str) -> str:
    """Return the key of a model that `gpusage profile` measures, with the sizes that were settled."""
    return f"profile:{model}@{shape}" if shape else f"profile:{model}"


def dump_card(document: Mapping[str, Any]) -> str:
    """Return a card's document as one line."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True)


def pack(cards: Mapping[str, str]) -> bytes:
    """Return the file's content, the same for the same cards; the dictionary is large, as models share blocks."""
    lines = "".join(f"{key}\t{cards[key]}\n" for key in sorted(cards))
    way = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 * 1024 * 1024}]
    return lzma.compress(lines.encode("ascii"), lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=way)


def unpack(content: bytes) -> Zoo:
    """Return the zoo that `pack` wrote."""
    lines = lzma.decompress(content).decode("ascii").splitlines()
    return Zoo(dict(line.partition("\t")[::2] for line in lines))
