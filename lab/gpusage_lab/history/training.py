"""Runs -> a history: each run is first estimated from those that had ended before it began, then learned from.

Invariants:

1. No run is estimated from one that had not ended when it began; a user's margins come from such misses alone.
2. The order in which runs are handed in changes nothing.

Source:
    The margins are conformal quantiles of one user's own misses. Vovk, Gammerman and Shafer, "Algorithmic Learning in a
    Random World", 2005, chapter 2: with n exchangeable scores the next one is at most the ceil((n + 1) (1 - alpha))-th
    smallest with a probability of at least 1 - alpha.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, exp, log
from pathlib import Path
from statistics import median

import msgspec

from gpusage.cli.user_file import write_output
from gpusage.experience.history import (
    LARGEST_MARGIN,
    QUANTITIES,
    GpuLookup,
    History,
    HistoryEstimate,
    Margin,
    Nearness,
    Quantity,
    Window,
    nearness,
)
from gpusage.experience.identity import OTHERS, similarity_keys, user_key
from gpusage.experience.runs import WINDOW_RUNS, Run

MISS_RATE = 0.05
"""Of each end of each quantity, so that both quantities together stay below their upper ends in 90 % of cases."""
LEAST_SCORES = 19
"""With fewer the quantile is above all of them."""
NEWEST_SCORES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """One quantity of a run, and what was estimated of it before the run began.

    Attributes:
        observed: What the run showed.
        estimate: ``None`` where nothing was known.
    """

    run: Run
    quantity: Quantity
    observed: float
    estimate: HistoryEstimate | None


class HistoryTrainer:
    """Learns from runs one by one.

    Args:
        find_gpu: Returns a GPU of the catalogue by its name.
    """

    def __init__(self, find_gpu: GpuLookup) -> None:
        self._find_gpu = find_gpu
        self._values: defaultdict[tuple[str, str, Quantity, str], deque[float]] = defaultdict(
            lambda: deque(maxlen=WINDOW_RUNS)
        )
        self._scores: defaultdict[tuple[str, Quantity, Nearness], deque[tuple[float, float]]] = defaultdict(
            lambda: deque(maxlen=NEWEST_SCORES)
        )
        self._windows: dict[str, dict[Quantity, dict[str, Window]]] = {}
        self._shared: dict[str, dict[str, dict[Quantity, dict[str, Window]]]] = {}
        self._margins: dict[str, dict[Quantity, dict[Nearness, Margin]]] = {}
        self._users: set[str] = set()
        self._run_count = 0
        self._history = self.history(0.0)

    def backtest(self, runs: Iterable[Run]) -> Iterator[Backtest]:
        """Yield what was estimated of each quantity of each of *runs*, and learn from all of them."""
        running: list[tuple[float, int, Run]] = []
        number = count()
        for run in sorted(runs, key=lambda run: (run.started_at_s, run.ended_at_s, repr(run.identity))):
            while running and running[0][0] <= run.started_at_s:
                self.add(heapq.heappop(running)[-1])
            for quantity, value in observed_quantities(run):
                estimate = self._history.estimate(run.identity, quantity, self._find_gpu(run.gpu), self._find_gpu)
                yield Backtest(run=run, quantity=quantity, observed=value, estimate=estimate)
            heapq.heappush(running, (run.ended_at_s, next(number), run))
        while running:
            self.add(heapq.heappop(running)[-1])

    def history(self, fitted_at_s: float) -> History:
        """Return what has been learned so far; it goes on growing with this trainer."""
        return History(
            runs=self._run_count,
            users=len(self._users),
            fitted_at_s=fitted_at_s,
            windows=self._windows,
            shared=self._shared,
            margins=self._margins,
        )

    def add(self, run: Run) -> None:
        """Learn from *run*, which has ended."""
        self._run_count += 1
        user, keys = user_key(run.identity.user), similarity_keys(run.identity)
        self._users.add(user)
        for quantity, value in observed_quantities(run):
            self._add_score(run, quantity, value)
            for level, key in keys.items():
                if level == OTHERS and run.out_of_memory:
                    continue  # it can be forged with a cap of one's own, and would raise others' estimates
                owner = user if level == OTHERS else ""
                values = self._values[key, owner, quantity, run.gpu]
                values.append(value)
                by_key = self._shared.setdefault(key, {}) if owner else self._windows
                by_key.setdefault(owner or key, {}).setdefault(quantity, {})[run.gpu] = window_of([*values])

    def _add_score(self, run: Run, quantity: Quantity, value: float) -> None:
        """Add how *value* compares with the nearest runs of its user, and set the margin that follows.

        A score is two logarithms: of the value over the highest of these runs, and of their lowest over the value.
        """
        user = user_key(run.identity.user)
        nearest = self._history.matching_windows(run.identity, quantity, self._find_gpu(run.gpu), self._find_gpu)
        level, window = next(((level, window) for level, window in nearest if level != OTHERS), (None, None))
        if level is None or window is None:
            return
        scores = self._scores[user, quantity, nearness(level)]
        scores.append((log(value / window.high), log(window.low / value)))
        if len(scores) >= LEAST_SCORES:
            up, down = (_conformal_factor(logarithms) for logarithms in zip(*scores, strict=True))
            self._margins.setdefault(user, {}).setdefault(quantity, {})[nearness(level)] = Margin(up=up, down=down)


def fit_history(runs: Sequence[Run], find_gpu: GpuLookup, fitted_at_s: float) -> tuple[History, list[Backtest]]:
    """Return the history of *runs*, and what would have been estimated of each before it began.

    Args:
        runs: Those on GPUs that the catalogue knows; others raise `DeviceError`.
        find_gpu: Returns a GPU of the catalogue by its name.
        fitted_at_s: Now, seconds since 1970.
    """
    trainer = HistoryTrainer(find_gpu)
    backtests = [*trainer.backtest(runs)]
    return trainer.history(fitted_at_s), backtests


def observed_quantities(run: Run) -> Iterator[tuple[Quantity, float]]:
    """Yield each quantity that *run* showed."""
    for quantity, value in zip(QUANTITIES, (run.peak_utilization, run.required_bytes), strict=True):
        if value:
            yield quantity, value


def _conformal_factor(logarithms: Iterable[float]) -> float:
    ordered = sorted(logarithms)
    rank = min(ceil((len(ordered) + 1) * (1 - MISS_RATE)), len(ordered))
    return min(max(exp(ordered[rank - 1]), 1.0), LARGEST_MARGIN)


def window_of(values: Sequence[float]) -> Window:
    """Return the newest `WINDOW_RUNS` of *values*, of which there is one at least."""
    newest = values[-WINDOW_RUNS:]
    return Window(count=len(newest), low=min(newest), middle=median(newest), high=max(newest))


def write_history(history: History, path: Path) -> None:
    """Write *history* to *path*.

    Raises:
        RequestError: The file cannot be written.
    """
    write_output(path, msgspec.json.encode({"schema": "gpusage.history/1", "history": history}).decode())
