"""Rulings that hold for other questions too: those that agree in every field that the ruling rests on.

Nothing declares the fields that a ruling rests on. We watch instead: a question is judged with its fields in a `Traced`
mapping, which remembers what was looked at. Job names and users differ from job to job, and nobody looks at them.

Invariants:

1. A ruling rests on the fields that were looked at and on the snapshot, and on nothing else.
2. Two questions that agree in those fields, present or absent, get the same ruling.
3. Any thread may find and add.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from gpusage.service.memo import Memo
from gpusage.service.protocol import Ask

LIMIT_CHARACTERS = 16_000_000
PATTERNS_LIMIT = 16

Ruling = TypeVar("Ruling")
_Pattern = tuple[str, ...]
_Key = tuple[str, _Pattern, tuple[str | None, ...]]


class Traced(Mapping[str, str]):
    """Fields that remember which of them were read; reading all of them, in any way, counts as reading each."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields
        self._seen: set[str] = set()
        self._whole = False

    def __getitem__(self, key: str) -> str:
        self._seen.add(key)
        return self._fields[key]

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            self._seen.add(key)
        return key in self._fields

    def __iter__(self) -> Iterator[str]:
        self._whole = True
        return iter(self._fields)

    def __len__(self) -> int:
        self._whole = True
        return len(self._fields)

    def seen(self) -> frozenset[str] | None:
        """Return the names that were looked at, present or not; ``None`` where somebody looked at all there were."""
        return None if self._whole else frozenset(self._seen)


class Precedents(Generic[Ruling]):
    """Rulings of one snapshot."""

    def __init__(self) -> None:
        self._patterns: dict[str, list[_Pattern]] = {}
        self._rulings: Memo[_Key, Ruling] = Memo(LIMIT_CHARACTERS)
        self._lock = threading.Lock()

    def find(self, ask: Ask) -> Ruling | None:
        """Return the ruling of an earlier question that agrees with *ask* in all that mattered."""
        with self._lock:
            for pattern in self._patterns.get(ask.manager, ()):
                ruling = self._rulings.get(_key(ask, pattern))
                if ruling is not None:
                    return ruling
        return None

    def add(self, ask: Ask, seen: frozenset[str] | None, ruling: Ruling) -> None:
        """Keep *ruling*; to make it, the judge looked at the fields *seen* of *ask*."""
        if seen is None:
            return
        pattern = tuple(sorted(seen))
        key = _key(ask, pattern)
        with self._lock:
            if self._takes(ask.manager, pattern):
                self._rulings.put(key, ruling, weight=1000 + sum(len(value) for value in key[2] if value))

    def _takes(self, manager: str, pattern: _Pattern) -> bool:
        """Take note of *pattern*, unless there are too many others."""
        patterns = self._patterns.setdefault(manager, [])
        if pattern not in patterns and len(patterns) < PATTERNS_LIMIT:
            patterns.append(pattern)
        return pattern in patterns


def _key(ask: Ask, pattern: _Pattern) -> _Key:
    return ask.manager, pattern, tuple(map(ask.fields.get, pattern))
