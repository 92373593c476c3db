"""Small caches: values computed on first use, keys by identity, and the newest values of a few keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

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


class lazy(Generic[T]):  # noqa: N801 - a decorator, as property is
    """Like `functools.cached_property` from Python 3.12 on; before, all objects of a class wait for one lock.

    Two threads may both work out what neither found.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> T:
        value = instance.__dict__[self._name] = self._function(instance)
        return value
