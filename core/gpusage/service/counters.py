"""What gpusaged counts for its metrics: decisions by label, durations of answers, GPU time of runs.

Invariants:

1. Counting costs an answer about two microseconds, needs no library, and never waits.
2. One thread writes a counter; any other reads each count as it was a moment ago or is now.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import get_args

from gpusage.reports.amounts import Amounts, amounts_of, total
from gpusage.store.rows import Observation
from gpusage_hooks.types import Outcome

BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.25, 1.0)
"""Upper ends of the buckets: an answer from memory takes 1 ms, one of a new model 10, and 40 is the usual limit."""
Reply = Callable[[bytes], None]
Labels = tuple[str, ...]


@dataclass(slots=True)
class Durations:
    """How many answers took how long: one count per bucket of `BOUNDS_S`, the last one for all that is longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, duration_s: float) -> None:
        """Count one answer."""
        self.counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s


@dataclass(slots=True)
class AnswerCounters:
    """Counts answers; written in the event loop.

    Attributes:
        decisions: By manager, code and mode.
    """

    decisions: Counter[Labels] = field(default_factory=Counter)
    durations: Durations = field(default_factory=Durations)

    def timed(self, reply: Reply) -> Reply:
        """Return *reply* so that the time from now until its call is counted."""
        begun_s = time.perf_counter()

        def response(line: bytes) -> None:
            reply(line)
            self.durations.add(time.perf_counter() - begun_s)

        return response


@dataclass(slots=True)
class RunCounters:
    """Counts runs; written in the thread that collects usage.

    Attributes:
        runs: By manager and outcome.
        hours: By GPU, as the node named it.
        promises: To shares that were given: ``kept``, ``broken``, ``unknown``.
    """

    runs: Counter[Labels] = field(default_factory=Counter)
    hours: dict[str, Amounts] = field(default_factory=dict)
    promises: Counter[str] = field(default_factory=Counter)

    def expect(self, manager: str, gpus: Iterable[str]) -> None:
        """Begin the series of *manager* at 0: Prometheus does not count a series' first value as an increase."""
        for outcome in get_args(Outcome):
            self.runs[manager, outcome] += 0
        for gpu in gpus:
            self.hours.setdefault(gpu, Amounts())

    def add(self, observed: Observation) -> None:
        """Count one run."""
        usage = observed.usage
        self.runs[usage.manager, usage.outcome] += 1
        self.hours[usage.gpu] = total([self.hours.get(usage.gpu, Amounts()), amounts_of(observed)])

    def add_promise(self, *, held: bool | None) -> None:
        """Count one promise; ``None`` where nothing shows whether it was kept."""
        self.promises["unknown" if held is None else "fulfilled" if held else "broken"] += 1
