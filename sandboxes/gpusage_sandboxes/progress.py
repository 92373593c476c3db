"""The progress of a sandbox's build, shown on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TaskID

Report = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much: ``report("download", 3_000, 14_000)``."""


def silent(stage: str, done: int, total: int) -> None:
    """Report to nobody."""


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Report]:
    """Show on standard error what is done, as a bar a stage, where that is a terminal."""
    console = Console(stderr=True, quiet=quiet)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
