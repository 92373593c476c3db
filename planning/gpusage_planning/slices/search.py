"""The mean wait of jobs under a MIG layout, by the simulator, and a local search for the layout with the least.

A job may have each GPU that it fits on and that makes it no slower than is accepted, and takes the smallest that is
free, in the order of submission with backfill. What happens is what is predicted. A job that nothing fits waits a day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

import numpy as np

from gpusage.policies.share_price import Limits
from gpusage_planning.simulator.contract import Demand, JobRequest, Jobs, Policy, Truth
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.policies import Slots, TypesOf, with_requested_shares
from gpusage_planning.simulator.scenario import Scenario
from gpusage_planning.slices.layouts import WHOLE, Board, Layout, board_of, profile_of

DAY_S = 86400.0
"""What a job waits that fits nothing of a layout."""
MOST_LEFT_OUT = 0.01
"""Of the jobs, that may fit nothing of a layout."""
COLUMNS = ("submit_s", "work_s", "limit_s", "gpu_count", "kind", "user")
Wait = tuple[float, int]
"""The mean wait in seconds, and how many jobs fit nothing."""


class Smallest(Slots):
    """One GPU or slice for a job, the first of its types that is free; several GPUs for a job are whole ones."""

    def demand(self, ask: JobRequest) -> Demand:
        """Return the types in their order."""
        return self.whole_gpus(ask, places_of(self.fleet, self.types_of[ask.kind], ask.gpu_count))


def places_of(fleet: Fleet, places: Sequence[int], gpu_count: int) -> Sequence[int]:
    """Return those of *places* where there are so many GPUs: of slices no job has several."""
    types = [(place, fleet.types[place]) for place in places]
    return [place for place, one in types if one.gpu_count >= gpu_count and (gpu_count == 1 or not profile_of(one))]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Month:
    """Jobs, and where each kind of them may run.

    Attributes:
        fleet: With the whole GPUs and every slice of *boards*, however many there are.
        types_of: The types that a kind may have, the smallest first.
    """

    jobs: Jobs
    boards: Sequence[Board]
    fleet: Fleet
    truth: Truth
    types_of: TypesOf

    def types(self, layout: Layout) -> Sequence[GpuType]:
        """Return the types of the fleet as *layout* has them."""
        return [*chain.from_iterable(board.types(layout) for board in self.boards)]

    def wait(self, types: Sequence[GpuType], policy: Callable[[Fleet], Policy] | None = None) -> Wait:
        """Return how long jobs wait where there are *types*, by *policy* if it is not `Smallest`."""
        fleet = replace(self.fleet, types=tuple(types))
        # The engine refuses a job that fits nowhere.
        asks = [*zip(self.jobs.kind.tolist(), self.jobs.gpu_count.tolist(), strict=True)]
        fits = {ask: bool(places_of(fleet, self.types_of[ask[0]], ask[1])) for ask in {*asks}}
        runs = [job for job, ask in enumerate(asks) if fits[ask]]
        sum_s = DAY_S * (len(asks) - len(runs))
        if runs:
            columns = {name: getattr(self.jobs, name)[runs] for name in COLUMNS}
            jobs = replace(self.jobs, ids=[self.jobs.ids[job] for job in runs], **columns)
            chosen = policy(fleet) if policy else Smallest(fleet=fleet, types_of=self.types_of)
            result = simulate(jobs, fleet, with_requested_shares(chosen, jobs.kinds), self.truth)
            sum_s += float((result.start_s - jobs.submit_s).sum())
        return sum_s / len(asks), len(asks) - len(runs)


def best_layout(month: Month, tries: int, progress: Callable[[int], None] = lambda _: None) -> tuple[Layout, int]:
    """Return the layout with the least mean wait that a local search finds, and how many layouts it simulated.

    It begins with whole GPUs, and divides those of one type that are divided in one way in another way: all of them,
    then half, and so on down to one. So of equal layouts the one with more whole GPUs stays. It ends after *tries*.
    """
    waits: dict[frozenset[object], Wait] = {}

    def rank(layout: Layout) -> tuple[float, float]:
        key = frozenset(layout.items())
        if key not in waits:
            waits[key] = month.wait(month.types(layout))
            progress(len(waits))
        # Where the others wait for a day, it would be of use to leave jobs out.
        return max(waits[key][1] - MOST_LEFT_OUT * len(month.jobs), 0.0), waits[key][0]

    best: Layout = {(one.whole.name, WHOLE): one.whole.gpu_count for one in month.boards}
    step = max(best.values())
    while step and len(waits) < tries:
        nearest = min(_moves(best, month.boards, step), key=rank, default=best)
        if rank(nearest) < rank(best):
            best = nearest
        else:
            step //= 2
    return best, len(waits)


def _moves(layout: Layout, boards: Sequence[Board], step: int) -> Iterator[Layout]:
    """Yield *layout* with up to *step* GPUs that are divided alike divided in another way."""
    for board in boards:
        for (name, before), count in layout.items():
            for after in board.divisions if name == board.whole.name else ():
                moved = min(step, count)
                yield +(Counter(layout) - Counter({(name, before): moved}) + Counter({(name, after): moved}))


def month_of(scenario: Scenario, boards: Sequence[Board], within: Limits) -> Month:
    """Return the jobs of *scenario*, whose fleet has every type of *boards*, and where each kind may run."""
    # Errors would decide between layouts that are alike.
    truth = replace(scenario.truth, errors=np.zeros_like(scenario.truth.errors))
    types_of = {kind: _types(scenario, kind, within) for kind in range(len(scenario.jobs.kinds))}
    return Month(jobs=scenario.jobs, boards=boards, fleet=scenario.fleet, truth=truth, types_of=types_of)


def _types(scenario: Scenario, kind: int, within: Limits) -> tuple[int, ...]:
    """Return the types that jobs of a *kind* may have: GPUs of the board on which they ran, or slices of it."""
    types = scenario.fleet.types
    own = next((one for one in types if one.name == scenario.jobs.kinds[kind].gpu_type), None)
    sizes = [(one.gpu.sm_count if one.gpu else inf, one.memory_bytes) for one in types]
    # Of a job without a model only this is known: what it had was enough.
    least = sizes[types.index(own)] if own is not None else (inf, inf)
    places = []
    for place, one in enumerate(types):
        need, size = scenario.models.needs.get((kind, place)), sizes[place]
        is_enough = not profile_of(one) or (least[0] <= size[0] and least[1] <= size[1])
        if need is not None:
            is_fast = need.slowdown.value <= within.expected and need.slowdown.high <= within.worst
            is_enough = need.fits and (is_fast or not profile_of(one))
        if (own is None or board_of(one) == board_of(own)) and (is_enough or one is own):
            places.append(place)
    return tuple(sorted(places, key=sizes.__getitem__))
