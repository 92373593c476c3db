"""Keys by identity, so that a cache need not compare or hash large values, and a small cache."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


class Identity(Generic[T]):
    """Equal only to the identity of the same object, which stays alive as long as the key: its ``id`` is not reused."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value


class Newest(Generic[Key, T]):
    """The newest values by key; thread-safe. Two threads may both make a missing value.

    Args:
        limit: The number of values, at least 2.
    """

    __slots__ = ("_limit", "_values")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[Key, T] = {}

    def find(self, key: Key, make: Callable[[], T]) -> T:
        """Return the value of *key*, from *make* if it is missing."""
        value = self._values.get(key)
        if value is None:
            value = make()
            # A new dict, not a change of the old one, which another thread may read.
            self._values = dict([*list(self._values.items())[1 - self._limit :], (key, value)])
        return value
