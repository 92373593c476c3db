"""A cache of bounded weight that evicts the least recently used entry first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class WeightedLruCache(Generic[Key, Value]):
    """Values by key, for one thread.

    Args:
        limit: Of the sum of the weights; an entry heavier than it is not cached at all.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return the value of *key*, which is the most recently used one from now on, or ``None``."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, weight: int = 1) -> None:
        """Cache *value*; evict the least recently used entries until the limit is met."""
        _, replaced_weight = self._entries.pop(key, (None, 0))
        self._weight -= replaced_weight
        if weight > self._limit:
            return
        self._entries[key] = (value, weight)
        self._weight += weight
        while self._weight > self._limit:
            _, (_, evicted_weight) = self._entries.popitem(last=False)
            self._weight -= evicted_weight
