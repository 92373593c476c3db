"""How true a site's history is: its estimates of runs that it had not seen, beside baselines.

Two splits: by time, where each of the newest runs is estimated from those that had ended before it began; and by user,
where each run is estimated from other users' alone. Baselines estimate the same runs, and have no interval.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Literal

import msgspec

from gpusage.experience.history import QUANTITIES, GpuLookup, History, Quantity
from gpusage.experience.identity import OTHERS, similarity_keys
from gpusage.experience.runs import Run
from gpusage_lab.history.training import Backtest, observed_quantities

NEWEST = 0.3
"""The part of the runs that the split by time tests."""
Split = Literal["time", "user"]
Baseline = Callable[[Run], float | None]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """How true one predictor was of one quantity in one split.

    Attributes:
        runs: How many were tested.
        estimated: Of how many there was an estimate; the following figures are of these.
        below: How many stayed below the upper end; ``None`` where there is none.
        inside: How many lay between both ends.
        error: Median of the distance between estimate and observation, as a part of the observation.
        symmetric_accuracy: Mean of the smaller of both over the larger, 0 to 1; ``None`` where nothing was estimated.
    """

    split: Split
    quantity: Quantity
    predictor: str
    runs: int
    estimated: int
    below: int | None = None
    inside: int | None = None
    error: float | None = None
    symmetric_accuracy: float | None = None


def evaluate_history(backtests: Sequence[Backtest], history: History, find_gpu: GpuLookup) -> list[Calibration]:
    """Return how true *history* is by both splits, with baselines.

    Args:
        backtests: As `fit_history` returns them.
        history: The same fit's.
        find_gpu: Returns a GPU of the catalogue by its name.
    """
    runs = list({id(backtest.run): backtest.run for backtest in backtests}.values())
    begin_s = sorted(run.started_at_s for run in runs)[int((1 - NEWEST) * len(runs))] if runs else 0.0
    rows = []
    for quantity in QUANTITIES:
        of_quantity = [backtest for backtest in backtests if backtest.quantity == quantity]
        tested = [backtest for backtest in of_quantity if backtest.run.started_at_s >= begin_s]
        rows.append(_calibration("time", quantity, tested))
        for name, baseline in _baselines(quantity, of_quantity, begin_s).items():
            points = [(value, each.observed) for each in tested if (value := baseline(each.run)) is not None]
            rows.append(_row("time", quantity, name, points, runs=len(tested)))
        rows.append(_calibration("user", quantity, [_by_others(each, history, find_gpu) for each in of_quantity]))
    return rows


def _by_others(backtest: Backtest, history: History, find_gpu: GpuLookup) -> Backtest:
    """Return *backtest* with the estimate from other users' runs alone."""
    run, quantity = backtest.run, backtest.quantity
    key = similarity_keys(run.identity).get(OTHERS)
    others = History(shared={key: history.shared.get(key, {})} if key else {})
    estimate = others.estimate(run.identity, quantity, find_gpu(run.gpu), find_gpu)
    return Backtest(run=run, quantity=quantity, observed=backtest.observed, estimate=estimate)


def _calibration(split: Split, quantity: Quantity, backtests: Sequence[Backtest]) -> Calibration:
    pairs = [(each.estimate.interval, each.observed) for each in backtests if each.estimate is not None]
    return _row(
        split,
        quantity,
        "history",
        [(interval.value, observed) for interval, observed in pairs],
        runs=len(backtests),
        below=sum(observed <= interval.high for interval, observed in pairs),
        inside=sum(interval.low <= observed <= interval.high for interval, observed in pairs),
    )


def _baselines(quantity: Quantity, backtests: Sequence[Backtest], begin_s: float) -> Mapping[str, Baseline]:
    """Return the newest runs' users' medians, the last runs of their names, and a constant, as predictors of a run."""
    by_user: dict[str, list[float]] = defaultdict(list)
    for backtest in backtests:
        if backtest.run.ended_at_s < begin_s:
            by_user[backtest.run.identity.user].append(backtest.observed)
    constant = [value for values in by_user.values() for value in values]
    return {
        "user's median": lambda run: median(values) if (values := by_user.get(run.identity.user)) else None,
        "job name's last run": _last_run([backtest.run for backtest in backtests], quantity),
        "constant": lambda _: median(constant) if constant else None,
    }


def _last_run(runs: Sequence[Run], quantity: Quantity) -> Baseline:
    """Return what estimates a run by the last one of its user and name that had ended before it began."""
    ended: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.ended_at_s):
        for each, value in observed_quantities(run):
            if each == quantity:
                ended[run.identity.user, run.identity.job_name].append((run.ended_at_s, value))

    def last(run: Run) -> float | None:
        own = ended[run.identity.user, run.identity.job_name]
        return next((value for ended_at_s, value in reversed(own) if ended_at_s <= run.started_at_s), None)

    return last


def _row(  # noqa: PLR0913 - one per column
    split: Split,
    quantity: Quantity,
    predictor: str,
    points: Sequence[tuple[float, float]],
    *,
    runs: int,
    below: int | None = None,
    inside: int | None = None,
) -> Calibration:
    """Return the row of *points*, each an estimate and what was observed."""
    return Calibration(
        split=split,
        quantity=quantity,
        predictor=predictor,
        runs=runs,
        estimated=len(points),
        below=below,
        inside=inside,
        error=median(abs(value / observed - 1) for value, observed in points) if points else None,
        symmetric_accuracy=fmean(min(pair) / max(pair) for pair in points) if points else None,
    )
