"""Caches of gpusaged: one of bounded weight, and one of responses that hold for other requests too.

Nothing declares the fields that a response rests on. They are observed instead: a request is decided with its fields in
an `AccessRecordingMapping`, which remembers each read. Job names differ from job to job, and nobody reads them.

Invariants:

1. A response rests on the fields that were read and on the snapshot, and on nothing else.
2. Two requests that agree in those fields, present or absent, get the same response.
3. Any thread may find and add responses.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from gpusage_hooks.types import DecisionRequest

RESPONSES_LIMIT_CHARACTERS = 16_000_000
RESPONSE_CHARACTERS = 1000
"""Of one response, beside the fields that it rests on: 16,000 responses at most."""
PATTERNS_LIMIT = 16
"""Different sets of fields that responses of one manager rest on; each costs a look-up per request."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
R = TypeVar("R")
_Pattern = tuple[str, ...]


class WeightedLruCache(Generic[Key, Value]):
    """Values by key, for one thread; the least recently used entry goes first.

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

        # It would evict all others, and then itself.
        if weight > self._limit:
            return

        self._entries[key] = (value, weight)
        self._weight += weight
        while self._weight > self._limit:
            _, (_, evicted_weight) = self._entries.popitem(last=False)
            self._weight -= evicted_weight


class AccessRecordingMapping(Mapping[str, str]):
    """Fields that remember which of them were read; reading all of them, in any way, counts as reading each."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields
        self._fields_read: set[str] = set()
        self._reads_all_fields = False

    def __getitem__(self, key: str) -> str:
        self._fields_read.add(key)
        return self._fields[key]

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            self._fields_read.add(key)
        return key in self._fields

    def __iter__(self) -> Iterator[str]:
        self._reads_all_fields = True
        return iter(self._fields)

    def __len__(self) -> int:
        self._reads_all_fields = True
        return len(self._fields)

    def fields_read(self) -> frozenset[str] | None:
        """Return the names that were read, present or not; ``None`` where all that there are were read."""
        return None if self._reads_all_fields else frozenset(self._fields_read)


class DecisionCache(Generic[R]):
    """Responses of one snapshot."""

    def __init__(self) -> None:
        self._patterns: dict[str, list[_Pattern]] = {}
        self._responses: WeightedLruCache[tuple[str, _Pattern, tuple[str | None, ...]], R] = WeightedLruCache(
            RESPONSES_LIMIT_CHARACTERS
        )
        # The event loop finds, the engine's thread adds.
        self._lock = threading.Lock()

    def find(self, request: DecisionRequest) -> R | None:
        """Return the response to an earlier request that agrees with *request* in all that mattered."""
        manager, fields = request.manager, request.fields
        with self._lock:
            for pattern in self._patterns.get(manager, ()):
                response = self._responses.get((manager, pattern, tuple(map(fields.get, pattern))))
                if response is not None:
                    return response
        return None

    def add(self, request: DecisionRequest, fields_read: frozenset[str] | None, response: R) -> None:
        """Keep *response*, for which the engine read *fields_read* of *request*; ``None`` for none that lasts."""
        if fields_read is None:
            return

        # Sorted, so that each set of fields is one pattern.
        pattern = tuple(sorted(fields_read))
        values = tuple(map(request.fields.get, pattern))

        with self._lock:
            # A plugin that reads other fields for each request would fill the memory.
            patterns = self._patterns.setdefault(request.manager, [])
            if pattern not in patterns:
                if len(patterns) >= PATTERNS_LIMIT:
                    return
                patterns.append(pattern)
            weight = RESPONSE_CHARACTERS + sum(map(len, filter(None, values)))
            self._responses.put((request.manager, pattern, values), response, weight=weight)
