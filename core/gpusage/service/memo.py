"""A memo of bounded weight that forgets the least recently used entry first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """Remembers values by key, for one thread.

    Args:
        limit: Sum of the weights that are kept; something heavier than it is not kept at all.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """Return what was kept under *key*, or ``None``."""
        entry = self._kept.get(key)
        if entry is None:
            return None
        self._kept.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, weight: int = 1) -> None:
        """Keep *value*, at the cost of those not asked for longest."""
        _, old = self._kept.pop(key, (None, 0))
        self._weight -= old
        if weight > self._limit:
            return
        self._kept[key] = (value, weight)
        self._weight += weight
        while self._weight > self._limit:
            _, (_, lightened) = self._kept.popitem(last=False)
            self._weight -= lightened
