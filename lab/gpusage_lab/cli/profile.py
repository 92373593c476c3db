"""`gpusage profile`: measure workloads on this machine's GPU, alone and together."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gpusage.cli import tables

if TYPE_CHECKING:
    from gpusage_lab.profiling.campaign import Announcement, Order
    from gpusage_lab.profiling.items import Item, Kind
EXAMPLE = """\b
Examples:
  gpusage profile --dry-run
  gpusage profile --budget 1500s --output h200.csv
  gpusage profile --device cpu --suite tiny --output try.csv
  gpusage profile torchvision:resnet50,batch=64 hf:gpt2,batch=8,mode=infer --only solo,pair
"""
TOLD_OF_A_DRY_RUN = 20


def _duration(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    from gpusage_lab.profiling.plan import duration_s  # noqa: PLC0415 - start-up time

    try:
        return None if value is None else duration_s(value)
    except ValueError as error:
        message = f"must be a time such as 1500s or 25m; got {value!r}."
        raise click.BadParameter(message) from error


def _kinds(_: click.Context, __: click.Parameter, value: str | None) -> Sequence[Kind]:
    from gpusage_lab.profiling.items import KINDS  # noqa: PLC0415 - start-up time

    by_name = {name: kind for kind in KINDS for name in (kind, f"{kind}s")}
    names = [name.strip() for name in (value or "").split(",") if name.strip()]
    for name in names:
        if name not in by_name:
            message = f"must be of {', '.join(KINDS)}, separated by commas; got {name!r}."
            raise click.BadParameter(message)
    return tuple(by_name[name] for name in names)


@click.command(name="profile", epilog=EXAMPLE, short_help="Measure workloads on this machine's GPU.")
@click.argument("workloads", metavar="[WORKLOAD]...", nargs=-1)
@click.option("--suite", type=click.Choice(["session", "tiny"]), help="[default: session; tiny on the CPU]")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--gpu", type=click.IntRange(0), default=0, show_default=True, help="Which GPU, as nvidia-smi counts.")
@click.option("--only", callback=_kinds, metavar="KINDS", help="Only these kinds, such as solo,pair.")
@click.option(
    "--budget",
    "budget_s",
    metavar="TIME",
    callback=_duration,
    help="Stop in time, such as 1500s or 25m.  [default: never]",
)
@click.option("--retry", is_flag=True, help="Measure again what failed; what did not fit stays as it is.")
@click.option("--dry-run", is_flag=True, help="Tell what would be measured and how long it takes.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("profile.csv"),
    show_default=True,
    help="Table to append to; what it has is not measured again.",
)
def command(**options: Any) -> None:  # noqa: ANN401 - the options above
    """Measure WORKLOADs, or a suite of them, alone and together on one GPU of this machine.

    A workload is a named model (timm:, torchvision:, hf:, builtin:) with random weights, as in
    torchvision:resnet50,batch=64,mode=train,precision=bf16. May be stopped at any time: what was measured is in the
    table, and the next run goes on from there. Needs the extra [profile].
    """
    began = time.monotonic()
    from gpusage_lab.profiling import suites  # noqa: PLC0415 - start-up time
    from gpusage_lab.profiling.campaign import Order  # noqa: PLC0415 - as above

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
        _tell_plan(order)
    else:
        _measure(order)


def _tell_plan(order: Order) -> None:
    from gpusage_lab.profiling.items import KINDS  # noqa: PLC0415 - start-up time
    from gpusage_lab.profiling.plan import ON_CPU, Costs, pending, schedule  # noqa: PLC0415 - as above

    left = pending(order.items, order.table.rows(), only=order.only, retry=order.retry)
    planned = list(schedule(left, ON_CPU if order.gpu is None else Costs(), order.budget_s))
    columns = [tables.Column("kind", is_left=True), *(tables.Column(name) for name in ("planned", "left out", "time"))]
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
    for item, passed in planned[:TOLD_OF_A_DRY_RUN]:
        tables.show(f"{_clock(passed):>8}  {item.key}")
    if len(planned) > TOLD_OF_A_DRY_RUN:
        tables.show(f"{'...':>8}  and {len(planned) - TOLD_OF_A_DRY_RUN} more")


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
    from gpusage_lab.profiling import campaign  # noqa: PLC0415 - start-up time

    with _stopped_by_a_signal(), _progress() as tell:
        try:
            count = campaign.run(order, tell)
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
    from rich.console import Console  # noqa: PLC0415 - start-up time
    from rich.markup import escape  # noqa: PLC0415 - as above
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415 - as above

    console = Console(stderr=True)
    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]} left"),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, left="")

        def tell(told: Announcement) -> None:
            if console.is_terminal:
                bar.update(task, completed=told.done, total=told.total, left=_clock(told.left_s))
                bar.update(task, description=escape(told.item.key[:100]))
            elif told.status:
                click.echo(f"{told.done}/{told.total}  {told.status:<4}  {told.item.key}", err=True)

        yield tell
