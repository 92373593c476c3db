"""Past runs -> a history: each run is first told from those that had ended before it began, then learned from.

Invariants:

1. No run is told from one that had not ended when it began; a user's margins come from such misses alone.
2. The order in which runs are handed in changes nothing.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from gpusage.history.features import OTHERS, Level, keys_of, user_key
from gpusage.history.history import Find, History, Nearness, Told, nearness
from gpusage.history.margins import KEPT_SCORES, Margin, Score, margin_of, score
from gpusage.history.runs import PastRun
from gpusage.history.windows import KEPT_RUNS, QUANTITIES, Quantity, Window, window_of

_Values = defaultdict[tuple[str, str, Quantity, str], deque[float]]
_Own = dict[Quantity, dict[Nearness, Margin]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One run, and what was told of it before it began.

    Attributes:
        observed: What it showed.
        told: ``None`` where nothing was told of it.
    """

    run: PastRun
    quantity: Quantity
    observed: float
    told: Told | None


class Replay:
    """Tells runs one by one, and learns from each when it has ended.

    Args:
        find: Returns a GPU of the catalogue by its name.
    """

    def __init__(self, find: Find) -> None:
        self._find = find
        self._values: _Values = defaultdict(lambda: deque(maxlen=KEPT_RUNS))
        self._scores: dict[tuple[str, Quantity, Nearness], deque[Score]] = defaultdict(
            lambda: deque(maxlen=KEPT_SCORES)
        )
        self._windows: dict[str, dict[Quantity, dict[str, Window]]] = {}
        self._shared: dict[str, dict[str, dict[Quantity, dict[str, Window]]]] = {}
        self._margins: dict[str, _Own] = {}
        self._users: set[str] = set()
        self._runs = 0
        self._so_far = self.history(0.0)

    def checks(self, runs: Iterable[PastRun]) -> Iterator[Check]:
        """Yield what was told of each quantity of each of *runs*, and learn from all of them."""
        going: list[tuple[float, int, PastRun]] = []
        number = count()
        for run in sorted(runs, key=lambda run: (run.started_at_s, run.ended_at_s, repr(run.identity))):
            while going and going[0][0] <= run.started_at_s:
                self.learn(heapq.heappop(going)[-1])
            yield from self._checked(run)
            heapq.heappush(going, (run.ended_at_s, next(number), run))
        while going:
            self.learn(heapq.heappop(going)[-1])

    def history(self, fitted_at_s: float) -> History:
        """Return what has been learned so far; it goes on growing with this replay."""
        return History(
            runs=self._runs,
            users=len(self._users),
            fitted_at_s=fitted_at_s,
            windows=self._windows,
            shared=self._shared,
            margins=self._margins,
        )

    def learn(self, run: PastRun) -> None:
        """Learn from *run*, which has ended."""
        self._runs += 1
        user, keys = user_key(run.identity.user), keys_of(run.identity)
        self._users.add(user)
        for quantity, value in observed(run):
            self._score(run, quantity, value)
            for level, key in keys.items():
                self._keep(level, key, user, quantity, run.gpu, value)

    def _checked(self, run: PastRun) -> Iterator[Check]:
        for quantity, value in observed(run):
            told = self._so_far.tell(run.identity, quantity, self._find(run.gpu), self._find)
            yield Check(run=run, quantity=quantity, observed=value, told=told)

    def _score(self, run: PastRun, quantity: Quantity, value: float) -> None:
        """Keep how *run* lay to the nearest runs of its user, and what margin follows."""
        user = user_key(run.identity.user)
        nearest = self._so_far.nearest(run.identity, quantity, self._find(run.gpu), self._find)
        level, window = next(((level, window) for level, window in nearest if level != OTHERS), (None, None))
        if level is None or window is None:
            return
        scores = self._scores[user, quantity, nearness(level)]
        scores.append(score(window, value))
        margin = margin_of([*scores])
        if margin is not None:
            self._margins.setdefault(user, {}).setdefault(quantity, {})[nearness(level)] = margin

    def _keep(self, level: Level, key: str, user: str, quantity: Quantity, gpu: str, value: float) -> None:
        owner = user if level == OTHERS else ""
        values = self._values[key, owner, quantity, gpu]
        values.append(value)
        windows = self._shared.setdefault(key, {}).setdefault(owner, {}) if owner else self._windows.setdefault(key, {})
        windows.setdefault(quantity, {})[gpu] = window_of([*values])


def fit(runs: Sequence[PastRun], find: Find, fitted_at_s: float) -> tuple[History, list[Check]]:
    """Return the history of *runs*, and what would have been told of each before it began.

    Args:
        runs: Those on GPUs that the catalogue knows; others raise `DeviceError`.
        find: Returns a GPU of the catalogue by its name.
        fitted_at_s: Now, seconds since 1970.
    """
    replay = Replay(find)
    checks = [*replay.checks(runs)]
    return replay.history(fitted_at_s), checks


def observed(run: PastRun) -> Iterator[tuple[Quantity, float]]:
    """Yield each quantity that *run* showed."""
    values = {"utilization": run.utilization, "memory": run.memory_bytes}
    for quantity in QUANTITIES:
        value = values[quantity]
        if value:
            yield quantity, value
