"""Progress for people, on standard error: standard output is for what was asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class _Counted(Iterable[Item_co], Sized, Protocol[Item_co]):
    """Items whose number is known."""


def track(items: _Counted[Item], description: str) -> Iterator[Item]:
    """Yield *items* with a bar on a terminal, without a word elsewhere."""
    from rich.console import Console  # noqa: PLC0415 - start-up time
    from rich.progress import track as drawn  # noqa: PLC0415 - as above

    console = Console(stderr=True)
    return iter(drawn(items, description, total=len(items), console=console, disable=not console.is_terminal))
