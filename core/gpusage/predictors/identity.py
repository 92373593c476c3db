"""A key that stands for one object, so that caches need not compare or hash large values, and those caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, ParamSpec, TypeVar, cast

T = TypeVar("T")
P = ParamSpec("P")
_REMEMBERED = 512
_forget: list[Callable[[], None]] = []


class Identity(Generic[T]):
    """Equal only to the identity of the same object, which it keeps alive as long as a cache keeps the key."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value


def remembered(function: Callable[P, T]) -> Callable[P, T]:
    """Let *function*, whose first argument is an `Identity`, remember its latest results until `forget` is called."""
    cached = lru_cache(maxsize=_REMEMBERED)(function)
    _forget.append(cached.cache_clear)
    return cast("Callable[P, T]", cached)


def forget() -> None:
    """Forget every graph that predictors have seen, and what they worked out for it."""
    for clear in _forget:
        clear()
