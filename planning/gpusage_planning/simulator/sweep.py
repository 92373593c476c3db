"""Many simulations: each policy with each order and seed, in this process, in others, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from math import sqrt
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from gpusage.predictors.intervals import NINETY_PERCENT
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Interval
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.max_min import MaxMin
from gpusage_planning.simulator.orders import (
    PREEMPTION_S,
    ByAge,
    LeastAttainedService,
    Multifactor,
    Order,
    Ordering,
    ShortestJob,
    ShortestRemainingTime,
)
from gpusage_planning.simulator.policies import with_requested_shares
from gpusage_planning.simulator.result import Figures, Result
from gpusage_planning.simulator.rounds import simulate_ordered
from gpusage_planning.simulator.scenario import POLICIES, Scenario
from gpusage_planning.simulator.source import Source, scenario

ORDERS: Mapping[str, Callable[[], Order]] = {
    "fifo": lambda: ByAge(name="fifo"),
    "easy": lambda: ByAge(name="easy", backfill="reserve"),
    "sjf": ShortestJob,
    "srtf": ShortestRemainingTime,
    "las": LeastAttainedService,
    "max-min": MaxMin,
    "multifactor": Multifactor,
}
PREEMPTIVE = ("srtf", "las", "max-min")
PREDICTED = ("sjf", "srtf")
ROUNDS = ("las", "max-min")
"""Orders that suspend running jobs, those that go by predicted run times, and those that suspend in rounds."""
PACKING = ("packing", "packing-observed", "reactive", "sets")
"""Policies that know how much of a GPU a job takes only from who stands there, so that no room can be counted."""
DURATION_STREAM = 1
"""Tells the draws of run times from those of other errors, which have the same seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSettings:
    """An order by name, as a user asks for it; in plain values, so that it can be sent to another process.

    Attributes:
        duration_error: Standard deviation of the logarithm of predicted over true run time; ``None`` means that the
            time limit is the prediction.
        round_s: ``None`` for the order's own.
    """

    name: str
    duration_error: float | None = None
    preemption_s: float = PREEMPTION_S
    round_s: float | None = None


def ordering_of(settings: OrderSettings, scenario: Scenario, seed: int) -> Ordering:
    """Return the order with what it rests on; *seed* draws the errors of run times."""
    order = ORDERS[settings.name]()
    if settings.round_s is not None and settings.name in ROUNDS:
        order = replace(order, period_s=settings.round_s)
    predicted_s = scenario.jobs.limit_s
    if settings.duration_error is not None:
        deviates = np.random.default_rng([seed, DURATION_STREAM]).standard_normal(len(scenario.jobs))
        predicted_s = scenario.jobs.work_s * np.exp(settings.duration_error * deviates)

    return Ordering(order=order, predicted_s=predicted_s, preemption_s=settings.preemption_s)


def order_notes(orders: Sequence[OrderSettings]) -> Iterator[str]:
    """Yield what the figures of *orders* rest on."""
    names = [one.name for one in orders]
    if {*PREDICTED} & {*names}:
        error = orders[0].duration_error
        if error is None:
            yield "Run times are predicted by time limits; a job without one is predicted exactly."
        else:
            yield f"Run times are predicted with an error: its logarithm has a standard deviation of {error:g}."

    if {*PREEMPTIVE} & {*names}:
        yield (
            f"A job that was suspended takes {orders[0].preemption_s:g} s to go on where it stopped. Waits are those "
            "for the first start."
        )


Progress = Callable[[int], None]
ANSWER_S = "30s"


class Task(NamedTuple):
    """One simulation; any process that sees the files can do it."""

    source: Source
    policy: str
    seed: int
    order: OrderSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Repeated:
    """What one policy did, once for each seed."""

    results: tuple[Result, ...]

    @property
    def policy(self) -> str:
        """Return its name."""
        return self.results[0].policy

    @property
    def figures(self) -> Figures:
        """Return the median of each figure; of broken promises, those of all seeds together."""
        medians: dict[str, Any] = {}
        for item in fields(Figures):
            values = [getattr(one.figures, item.name) for one in self.results]
            known = [value for value in values if value is not None]
            medians[item.name] = median(known) if known else None

        broken = None if self.broken is None else self.broken.value
        return replace(self.results[0].figures, **{**medians, "broken": broken})

    @property
    def broken(self) -> Interval | None:
        """Return the share of all promises that was broken, 0 to 1, with an interval; ``None`` where none was made.

        An error is drawn once for each kind, so promises to its jobs are broken together: for the interval, a kind
        counts as one draw with each seed.
        """
        figures = [one.figures for one in self.results if one.figures.broken is not None]
        if not figures:
            return None
        count = sum(one.promised for one in figures)
        share = sum(one.promised * (one.broken or 0.0) for one in figures) / count
        return wilson_interval(share, sum(one.promised_kinds for one in figures))

    def ratios(self, other: Repeated, figure: str) -> list[float]:
        """Return *figure* over that of *other*, by seed; none where the other's is 0 with some seed."""
        pairs = [
            (getattr(own.figures, figure), getattr(one.figures, figure))
            for own, one in zip(self.results, other.results, strict=True)
        ]
        return [own / one for own, one in pairs] if all(one for _, one in pairs) else []


def wilson_interval(share: float, count: int) -> Interval:
    """Return *share*, of *count* independent draws, with the interval that contains the true one in 9 of 10 cases.

    Source:
        Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22, 1927.
    """
    weight = NINETY_PERCENT**2 / count
    middle = (share + weight / 2) / (1 + weight)
    half = sqrt(weight * share * (1 - share) + weight**2 / 4) / (1 + weight)
    return Interval(value=share, low=max(middle - half, 0.0), high=min(middle + half, 1.0))


def run(task: Task, progress: Progress | None = None) -> Result:
    """Simulate one policy, in its own order or another."""
    drawn = scenario(task.source, task.seed)
    policy = with_requested_shares(POLICIES[task.policy](drawn), drawn.jobs.kinds)
    if task.order is None:
        return simulate(drawn.jobs, drawn.fleet, policy, drawn.truth, progress)
    ordering = ordering_of(task.order, drawn, task.seed)
    return simulate_ordered(drawn.jobs, drawn.fleet, policy, drawn.truth, ordering, progress)


def repeated(count: int, results: Sequence[Result]) -> list[Repeated]:
    """Return the *results* of all tasks, seed by seed; of each seed, *count* policies in their orders."""
    return [Repeated(results=tuple(results[place::count])) for place in range(count)]


@contextmanager
def dask(address: str) -> Iterator[Executor]:
    """Yield what runs tasks on the Dask cluster whose scheduler has this address.

    Raises:
        RequestError: Dask is not installed, or nobody answers there.
    """
    try:
        from distributed import Client  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        message = "Library distributed must be there for --dask; got: not installed. Install gpusage's extra [dask]."
        raise RequestError(message) from error

    try:
        client = Client(address, timeout=ANSWER_S)  # type: ignore[no-untyped-call, unused-ignore]
    except (OSError, ValueError) as error:
        message = f"Dask's scheduler must answer at {address!r}; got: {error}. Start it, or name another address."
        raise RequestError(message) from error

    with client, client.get_executor() as pool:  # type: ignore[no-untyped-call, unused-ignore]
        yield pool
