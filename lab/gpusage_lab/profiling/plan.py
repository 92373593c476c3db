"""Which measurements are made, in which order, and how many of them a budget of time allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusage_lab.profiling.items import KINDS, Item, Kind, Side

Row = Mapping[str, Any]
FINAL = frozenset({"ok", "oom"})
"""What needs no second try; anything else is a failure, and is tried again where that is asked for."""
SLOW_STEP_S = 1.0
"""A batch whose step takes longer is the largest one that is measured of its ladder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that a measurement takes besides its own.

    Attributes:
        start_s: Of a worker process: Python, torch, the GPU's context.
        build_s: Of a model in a worker that has another one.
        warm_s: Of a workload's first steps.
        ends_s: Of a measurement's start and end.
        scale: What the estimates were wrong by so far.
        has_environments: Workers are started anew where MPS is to treat them otherwise; a CPU has no MPS.
    """

    start_s: float = 8.0
    build_s: float = 1.5
    warm_s: float = 0.8
    ends_s: float = 0.3
    scale: float = 1.0
    has_environments: bool = True


ON_CPU = Costs(start_s=6.0, build_s=0.3, warm_s=0.2, ends_s=0.1, has_environments=False)
Slots = tuple[tuple[tuple[object, ...], str], ...]
"""What the workers at hand hold: how each was started, and its model."""


def pending(
    items: Iterable[Item], rows: Sequence[Row], *, only: Sequence[Kind] = (), retry: bool = False
) -> list[Item]:
    """Return what is left to measure, in the order of a campaign: by worth, then so that workers are kept.

    Args:
        items: Of the suite.
        rows: Of the table so far.
        only: Leave out other kinds; empty leaves none out.
        retry: Measure again what failed.
    """
    done = {str(row["item"]) for row in rows if not retry or row["status"] in FINAL}
    wanted = {item.key: item for item in items if (not only or item.kind in only) and item.key not in done}
    left = [item for item in wanted.values() if not is_too_large(item, rows)]
    return sorted(left, key=_order)


def _order(item: Item) -> tuple[Any, ...]:
    percents = [side.percent or 0 for side in item.sides]
    return (item.tier, KINDS.index(item.kind), percents, [_job(side) for side in item.sides])


def _job(side: Side) -> tuple[str, str, str, float, int]:
    """Return what orders jobs: by model, so that it is built once, and batch last, so that a ladder ends at its top."""
    job, workload = side.job, side.job.workload
    return (job.model, workload.mode, workload.precision, job.stall_ratio, workload.batch_size)


def is_too_large(item: Item, rows: Iterable[Row]) -> bool:
    """Return whether a smaller batch of the same job, alone, did not fit or was slow already."""
    return any(_is_below(side, row) for row in rows if row["kind"] == "solo" for side in item.sides)


def _is_below(side: Side, row: Row) -> bool:
    workload = side.job.workload
    same = (row["model"], row["mode"], row["precision"]) == (side.job.model, workload.mode, workload.precision)
    if not same or row["shape"] != shape_text(side):
        return False
    batch_size = int(row["batch_size"])
    if row["status"] == "oom":
        return workload.batch_size >= batch_size
    return workload.batch_size > batch_size and float(row["step_time_s"] or 0) > SLOW_STEP_S


def shape_text(side: Side) -> str:
    """Return the sizes that the user settled, as the table has them."""
    return ";".join(f"{name}={'x'.join(map(str, sizes))}" for name, sizes in side.job.workload.shape)


def started_as(item: Item, side: Side, *, has_environments: bool) -> tuple[object, ...]:
    """Return what a worker must have been started with to run *side*."""
    if not has_environments:
        return ()
    return (item.kind != "solo", side.percent)


def estimate_s(item: Item, slots: Slots, costs: Costs) -> tuple[float, Slots]:
    """Return how long *item* takes, and what the workers hold afterwards.

    A worker with the right environment is kept, and its model where that is the same.
    """
    held = dict(enumerate(slots))
    total = item.seconds + costs.ends_s
    after = []
    for place, side in enumerate(item.sides):
        wanted = (started_as(item, side, has_environments=costs.has_environments), side.job.model)
        before = held.get(place)
        total += costs.warm_s
        if before is None or before[0] != wanted[0]:
            total += costs.start_s / len(item.sides) + costs.build_s  # workers start at the same time
        elif before[1] != wanted[1]:
            total += costs.build_s
        after.append(wanted)
    return total * costs.scale, tuple(after)


def schedule(items: Iterable[Item], costs: Costs, budget_s: float | None = None) -> Iterator[tuple[Item, float]]:
    """Yield each item that the budget allows, with the seconds passed when it ends.

    An item that does not fit is left out; a shorter one behind it may fit.
    """
    passed: float = 0
    slots: Slots = ()
    for item in items:
        taken, after = estimate_s(item, slots, costs)
        if budget_s is not None and passed + taken > budget_s:
            continue
        passed, slots = passed + taken, after
        yield item, passed


def duration_s(text: str) -> float:
    """Return the seconds of ``1500``, ``1500s``, ``25m`` or ``1h``.

    Raises:
        ValueError: It is none of these.
    """
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:], 0)
    seconds = float(text[:-1]) * factor if factor else float(text)
    if not 0 < seconds < 10**7:
        raise ValueError(text)
    return seconds
