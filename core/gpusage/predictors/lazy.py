"""A property that is computed on first use, and then kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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
