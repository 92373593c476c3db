"""The orders by name, with what a user sets of them and what each rests on in a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpusage.predictors import intervals
from gpusage_planning.simulator.contract import Order
from gpusage_planning.simulator.jobs import FloatArray
from gpusage_planning.simulator.max_min import MaxMin, MaxMinSpeeds
from gpusage_planning.simulator.orders import (
    ByAge,
    LeastAttainedService,
    Multifactor,
    ShortestJob,
    ShortestRemainingTime,
)
from gpusage_planning.simulator.queue_state import PREEMPTION_S, Ordering
from gpusage_planning.simulator.scenario import Scenario

ORDERS: Mapping[str, Callable[[Scenario], Order]] = {
    "fifo": lambda _: ByAge(name="fifo", backfill="none"),
    "easy": lambda _: ByAge(name="easy", backfill="reserve"),
    "sjf": lambda _: ShortestJob(),
    "srtf": lambda _: ShortestRemainingTime(),
    "las": lambda _: LeastAttainedService(),
    "max-min": lambda _: MaxMin(),
    "max-min-speeds": lambda scenario: MaxMinSpeeds(speeds=predicted_speeds(scenario)),
    "multifactor": lambda _: Multifactor(),
}
PREEMPTIVE = ("srtf", "las", "max-min", "max-min-speeds")
PREDICTED = ("sjf", "srtf")
ROUNDS = ("las", "max-min", "max-min-speeds")
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
    order: Any = ORDERS[settings.name](scenario)
    if settings.round_s is not None and settings.name in ROUNDS:
        order = replace(order, period_s=settings.round_s)
    predicted_s = scenario.jobs.limit_s
    if settings.duration_error is not None:
        deviates = np.random.default_rng([seed, DURATION_STREAM]).standard_normal(len(scenario.jobs))
        predicted_s = scenario.jobs.work_s * np.exp(settings.duration_error * deviates)
    return Ordering(order=order, predicted_s=predicted_s, preemption_s=settings.preemption_s)


def predicted_speeds(scenario: Scenario) -> FloatArray:
    """Return the predicted speed of each kind on each GPU type; 1 on its first type, and where nothing is known."""
    needs, kinds = scenario.models.needs, range(len(scenario.jobs.kinds))
    speeds = np.ones((len(kinds), len(scenario.fleet.types)))
    for kind in kinds:
        first = needs.get((kind, scenario.truth.first_type(kind)))
        for gpu_type in range(speeds.shape[1]):
            need = needs.get((kind, gpu_type))
            if first is not None and need is not None:
                speeds[kind, gpu_type] = intervals.speedup(need, first).value
    return speeds


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
