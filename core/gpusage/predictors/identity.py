"""A key that stands for one object, so that caches need not compare or hash large values."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Identity(Generic[T]):
    """Equal only to the identity of the same object, which it keeps alive as long as a cache keeps the key."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value
