"""Progress for people, on standard error: standard output is for what was asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import track as drawn

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class _Counted(Iterable[Item_co], Sized, Protocol[Item_co]):
    """Items whose number is known."""


def track(items: _Counted[Item], description: str) -> Iterator[Item]:
    """Yield *items* with a bar on a terminal, without a word elsewhere."""
    console = Console(stderr=True)
    return iter(drawn(items, description, total=len(items), console=console, disable=not console.is_terminal))
