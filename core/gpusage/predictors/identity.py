"""Keys that stand for one object, so that a cache need not compare or hash large values; and a small cache."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


class Identity(Generic[T]):
    """Equal only to the identity of the same object, which it keeps alive as long as a memory keeps the key."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value


class Newest(Generic[Key, T]):
    """The newest values by key; safe in several threads. Two threads may both make a value that is missing.

    Args:
        limit: How many are kept, at least 2.
    """

    __slots__ = ("_kept", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[Key, T] = {}

    def find(self, key: Key, make: Callable[[], T]) -> T:
        """Return the value of *key*; call *make* if it is not in memory."""
        value = self._kept.get(key)
        if value is None:
            value = make()
            self._kept = dict([*list(self._kept.items())[1 - self._limit :], (key, value)])
        return value
