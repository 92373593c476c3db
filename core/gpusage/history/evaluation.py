"""How true a site's history is: what it tells of runs that it had not seen, beside what is told without it.

Two splits: by time, where each of the newest runs is told from those that had ended before it began; and by user, where
each run is told from other users' alone. A baseline is told of the same runs, and has no interval.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from gpusage.history.features import OTHERS, keys_of
from gpusage.history.fitting import Check, observed
from gpusage.history.history import Find, History, Told
from gpusage.history.runs import PastRun
from gpusage.history.windows import QUANTITIES, Quantity

NEWEST = 0.3
"""The part of the runs that the split by time tests."""
Split = Literal["time", "user"]
Point = tuple[float, float]
"""What was told, and what was observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trueness:
    """How true one predictor was of one quantity in one split.

    Attributes:
        runs: How many were tested.
        told: Of how many something was told; the following figures are of these.
        below: How many stayed below the upper end; ``None`` where there is none.
        inside: How many lay between both ends.
        error: Median of the distance between told and observed, as a part of the observed.
        symmetric_accuracy: Mean of the smaller of both over the larger, 0 to 1; ``None`` where nothing was told.
    """

    split: Split
    quantity: Quantity
    predictor: str
    runs: int
    told: int
    below: int | None = None
    inside: int | None = None
    error: float | None = None
    symmetric_accuracy: float | None = None


def evaluated(checks: Sequence[Check], history: History, find: Find) -> list[Trueness]:
    """Return how true *history* is by both splits, with baselines.

    Args:
        checks: What was told of each run before it began, as `gpusage.history.fitting.fit` returns them.
        history: The same fit's.
        find: Returns a GPU of the catalogue by its name.
    """
    runs = list({id(check.run): check.run for check in checks}.values())
    begin_s = sorted(run.started_at_s for run in runs)[int((1 - NEWEST) * len(runs))] if runs else 0.0
    rows = []
    for quantity in QUANTITIES:
        of_quantity = [check for check in checks if check.quantity == quantity]
        tested = [check for check in of_quantity if check.run.started_at_s >= begin_s]
        rows += [_trueness("time", quantity, tested), *_baselines(quantity, of_quantity, begin_s)]
        rows += [_trueness("user", quantity, [_by_others(check, history, find) for check in of_quantity])]
    return rows


def _by_others(check: Check, history: History, find: Find) -> Check:
    """Return *check* with what is told of its run from other users' runs alone."""
    key = keys_of(check.run.identity).get(OTHERS)
    bare = History(shared={key: history.shared.get(key, {})} if key else {})
    told = bare.tell(check.run.identity, check.quantity, find(check.run.gpu), find)
    return Check(run=check.run, quantity=check.quantity, observed=check.observed, told=told)


def _trueness(split: Split, quantity: Quantity, checks: Sequence[Check]) -> Trueness:
    told = [(check.told, check.observed) for check in checks if check.told is not None]
    return _row(
        split,
        quantity,
        "history",
        [(each.interval.value, value) for each, value in told],
        runs=len(checks),
        below=sum(value <= each.interval.high for each, value in told),
        inside=sum(_is_inside(each, value) for each, value in told),
    )


def _is_inside(told: Told, value: float) -> bool:
    return told.interval.low <= value <= told.interval.high


def _baselines(quantity: Quantity, checks: Sequence[Check], begin_s: float) -> list[Trueness]:
    """Return what the newest runs' users' medians, the last runs of their names, and a constant tell of them."""
    tested = [check for check in checks if check.run.started_at_s >= begin_s]
    known = [check.run for check in checks if check.run.ended_at_s < begin_s]
    by_user = _values(known, quantity, lambda run: run.identity.user)
    constant = [value for values in by_user.values() for value in values]
    predictors: Mapping[str, Callable[[PastRun], float | None]] = {
        "user's median": lambda run: median(values) if (values := by_user.get(run.identity.user)) else None,
        "job name's last run": _last_runs([check.run for check in checks], quantity),
        "constant": lambda _: median(constant) if constant else None,
    }
    return [
        _row("time", quantity, name, list(_points(tested, predictor)), runs=len(tested))
        for name, predictor in predictors.items()
    ]


def _points(checks: Iterable[Check], predictor: Callable[[PastRun], float | None]) -> Iterable[Point]:
    for check in checks:
        value = predictor(check.run)
        if value is not None:
            yield value, check.observed


def _values(
    runs: Iterable[PastRun], quantity: Quantity, key_of: Callable[[PastRun], str]
) -> Mapping[str, Sequence[float]]:
    values: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        values[key_of(run)] += [value for which, value in observed(run) if which == quantity]
    return {key: each for key, each in values.items() if each}


def _last_runs(runs: Sequence[PastRun], quantity: Quantity) -> Callable[[PastRun], float | None]:
    """Return what tells a run by the last one of its user and name that had ended before it began."""
    ended: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.ended_at_s):
        for which, value in observed(run):
            if which == quantity:
                ended[run.identity.user, run.identity.job_name].append((run.ended_at_s, value))

    def last(run: PastRun) -> float | None:
        mine = ended[run.identity.user, run.identity.job_name]
        return next((value for ended_at_s, value in reversed(mine) if ended_at_s <= run.started_at_s), None)

    return last


def _row(  # noqa: PLR0913 - one per column
    split: Split,
    quantity: Quantity,
    predictor: str,
    points: Sequence[Point],
    *,
    runs: int,
    below: int | None = None,
    inside: int | None = None,
) -> Trueness:
    return Trueness(
        split=split,
        quantity=quantity,
        predictor=predictor,
        runs=runs,
        told=len(points),
        below=below,
        inside=inside,
        error=median(abs(told / seen - 1) for told, seen in points) if points else None,
        symmetric_accuracy=fmean(min(told, seen) / max(told, seen) for told, seen in points) if points else None,
    )
