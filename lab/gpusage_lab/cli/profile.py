"""`gpusage profile`: measure workloads on this machine's GPU, alone and together."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from gpusage.cli import tables
from gpusage_lab.profiling import campaign, suites
from gpusage_lab.profiling.campaign import Announcement, Order
from gpusage_lab.profiling.items import KINDS, Item
from gpusage_lab.profiling.plan import ON_CPU, Costs, pending, schedule

DRY_RUN_NOTES = 20


def measure(**options: Any) -> None:  # those of `gpusage profile`
    """Measure WORKLOADs, or a suite of them, alone and together on one GPU of this machine."""
    began = time.monotonic()

    words = options["workloads"]
    suite = options["suite"] or ("session" if options["device"] == "cuda" else "tiny")
    order = Order(
        items=suites.named(words) if words else {"session": suites.session, "tiny": suites.tiny}[suite](),
        output=options["output"],
        gpu=options["gpu"] if options["device"] == "cuda" else None,
        only=options["only"],
        retry=options["retry"],
        budget_s=options["budget_s"],
        began=began,
    )
    if options["dry_run"]:
        _print_plan(order)
    else:
        _measure(order)


def _print_plan(order: Order) -> None:
    left = pending(order.items, order.table.rows(), only=order.only, retry=order.retry)
    planned = list(schedule(left, ON_CPU if order.gpu is None else Costs(), order.budget_s))
    columns = tables.columns("kind", "planned", "left out", "time")
    times = _times(planned)
    rows = []
    for kind in KINDS:
        count = sum(item.kind == kind for item, _ in planned)
        others = sum(item.kind == kind for item in left) - count
        if count or others:
            rows.append([kind, str(count), str(others), _clock(times.get(kind, 0.0))])
    total = planned[-1][1] if planned else 0.0
    rows.append(["all", str(len(planned)), str(len(left) - len(planned)), _clock(total)])
    tables.show_rows(columns, rows)
    tables.show("")
    for item, passed in planned[:DRY_RUN_NOTES]:
        tables.show(f"{_clock(passed):>8}  {item.key}")
    if len(planned) > DRY_RUN_NOTES:
        tables.show(f"{'...':>8}  and {len(planned) - DRY_RUN_NOTES} more")


def _times(planned: Sequence[tuple[Item, float]]) -> dict[str, float]:
    times: dict[str, float] = {}
    before = 0.0
    for item, passed in planned:
        times[item.kind] = times.get(item.kind, 0.0) + passed - before
        before = passed
    return times


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _measure(order: Order) -> None:
    with _stopped_by_a_signal(), _progress() as announce:
        try:
            count = campaign.run(order, announce)
        except KeyboardInterrupt:
            click.echo(f"Stopped; what was measured is in {order.output}. Run it again to go on.", err=True)
            raise click.Abort from None
    click.echo(f"{count} measured; the table is {order.output}.")


@contextmanager
def _stopped_by_a_signal() -> Iterator[None]:
    """Let SIGTERM stop the campaign as Ctrl-C does; what comes after the first finds us at it already."""

    def stop(*_: object) -> NoReturn:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress() -> Iterator[Callable[[Announcement], None]]:
    """Show a bar on a terminal, and a line an item elsewhere."""
    console = Console(stderr=True)
    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]} left"),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, left="")

        def announce(announcement: Announcement) -> None:
            if console.is_terminal:
                bar.update(
                    task, completed=announcement.done, total=announcement.total, left=_clock(announcement.left_s)
                )
                bar.update(task, description=escape(announcement.item.key[:100]))
            elif announcement.status:
                click.echo(
                    f"{announcement.done}/{announcement.total}  {announcement.status:<4}  {announcement.item.key}",
                    err=True,
                )

        yield announce
