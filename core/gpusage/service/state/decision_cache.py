"""Responses that hold for other requests too: those that agree in every field that the response rests on.

Nothing declares the fields that a response rests on. They are observed instead: a request is decided with its fields in
an `AccessRecordingMapping`, which remembers what was read. Job names and users differ from job to job, and nobody reads
them.

Invariants:

1. A response rests on the fields that were read and on the snapshot, and on nothing else.
2. Two requests that agree in those fields, present or absent, get the same response.
3. Any thread may find and add.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from gpusage.service.lru_cache import WeightedLruCache
from gpusage_hooks.types import DecisionRequest

LIMIT_CHARACTERS = 16_000_000
PATTERNS_LIMIT = 16

R = TypeVar("R")
_Pattern = tuple[str, ...]
_Key = tuple[str, _Pattern, tuple[str | None, ...]]


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
        self._responses: WeightedLruCache[_Key, R] = WeightedLruCache(LIMIT_CHARACTERS)
        self._lock = threading.Lock()

    def find(self, request: DecisionRequest) -> R | None:
        """Return the response to an earlier request that agrees with *request* in all that mattered."""
        with self._lock:
            for pattern in self._patterns.get(request.manager, ()):
                response = self._responses.get(_key(request, pattern))
                if response is not None:
                    return response
        return None

    def add(self, request: DecisionRequest, fields_read: frozenset[str] | None, response: R) -> None:
        """Keep *response*, for which the engine read *fields_read* of *request*."""
        if fields_read is None:
            return
        pattern = tuple(sorted(fields_read))
        key = _key(request, pattern)
        with self._lock:
            if self._has_pattern(request.manager, pattern):
                self._responses.put(key, response, weight=1000 + sum(len(value) for value in key[2] if value))

    def _has_pattern(self, manager: str, pattern: _Pattern) -> bool:
        """Return whether *pattern* is one of the patterns; it is added unless there are too many others."""
        patterns = self._patterns.setdefault(manager, [])
        if pattern not in patterns and len(patterns) < PATTERNS_LIMIT:
            patterns.append(pattern)
        return pattern in patterns


def _key(request: DecisionRequest, pattern: _Pattern) -> _Key:
    return request.manager, pattern, tuple(map(request.fields.get, pattern))
