"""Which GPUs end a job by its deadline, and the cheapest of them.

A run is assumed to start now, and to take the pessimistic end of its time: nobody knows how long the job will wait.

Invariants:

1. A deadline only makes a job prefer GPUs, or keeps its GPU whole. It never holds the job to a type.
2. Where the length of the run is not known, nothing makes the job slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpusage.devices.catalogue import name_key
from gpusage.policies.place import preferable_types, rankable_candidates, step_time_s, type_names
from gpusage.predictors.intervals import scaled
from gpusage_hooks.types import Candidate, Decision, Gpu, GpuNeed, Interval, PolicyInput
from gpusage_hooks.units import HOUR_S, WHOLE_PERCENT

UNKNOWN_LENGTH = "it has a deadline, but its run time is unknown: write its number of steps, steps=100000"


class Run(NamedTuple):
    """One run on one GPU, or a share of it.

    Attributes:
        cost: By the site's price; ``None`` where the GPU has none.
    """

    need: GpuNeed
    time_s: Interval
    cost: Interval | None

    @property
    def dearness(self) -> tuple[bool, float]:
        """Return what to sort by: those with a price first, and of those without one the slowest."""
        return (True, -self.time_s.value) if self.cost is None else (False, self.cost.value)

    def ends_within(self, deadline_s: float) -> bool:
        """Return whether it surely ends within *deadline_s* seconds."""
        return self.need.fits and self.time_s.high <= deadline_s


def run_of(need: GpuNeed, steps: int, price_per_hour: float | None) -> Run:
    """Return the run of *steps* with *need*; *price_per_hour* is the whole GPU's."""
    time_s = scaled(need.step_time_s, steps)
    if price_per_hour is None:
        return Run(need, time_s, None)
    return Run(need, time_s, scaled(time_s, price_per_hour * need.share_percent / WHOLE_PERCENT / HOUR_S))


def price(gpu: Gpu, price_per_hour: Mapping[str, float]) -> float | None:
    """Return the site's price of an hour of *gpu*, under any of its names; ``None`` where it has no price."""
    called = {name_key(name) for name in (gpu.name, *gpu.aliases)}
    return next((cost for name, cost in price_per_hour.items() if name_key(name) in called), None)


def latest_step_s(case: PolicyInput) -> float | None:
    """Return how long a step may take so that the job of *case* ends by its deadline; ``None`` for no limit."""
    deadline_s, steps = case.request.deadline_s, case.workload.steps
    return deadline_s / steps if deadline_s is not None and steps else None


def decide_deadline(case: PolicyInput, draft: Decision) -> Decision | None:
    """Prefer the cheapest GPU type with room on which the run ends in time; where none has room, all such types."""
    if latest_step_s(case) is None or case.request.gpu_type is not None or not case.rules.generation.enabled:
        return None
    where = rankable_candidates(case)
    runs = _runs(case, where)
    in_time = [place for place in where if runs[place.name].ends_within(case.request.deadline_s or 0)]
    if not where or (len(in_time) == len(where) and not any(run.cost for run in runs.values())):
        return None
    if not in_time:
        fastest = min(where, key=step_time_s)
        reason = f"no GPU here certainly finishes it by its deadline; {fastest.name} is the fastest with a prediction"
        return _with_preference(draft, [fastest], reason)
    ordered = sorted(in_time, key=lambda place: runs[place.name].dearness)
    roomy = [place for place in ordered if place.pool.has_room(WHOLE_PERCENT)][:1]
    if not roomy:
        return _with_preference(draft, ordered, f"ends by its deadline on {type_names(ordered)}")
    kind = "slowest" if runs[roomy[0].name].cost is None else "cheapest"
    return _with_preference(
        draft, roomy, f"{type_names(roomy)} is the {kind} with room now that ends it by its deadline"
    )


def _runs(case: PolicyInput, where: Sequence[Candidate]) -> Mapping[str, Run]:
    """Return the run of the job at each of *where*, by the place's name."""
    prices, steps = case.rules.money.price_per_hour, case.workload.steps or 0
    return {place.name: run_of(place.need, steps, price(place.gpu, prices)) for place in where}


def _with_preference(draft: Decision, wished: Sequence[Candidate], reason: str) -> Decision | None:
    """Return *draft* with the preference for *wished*; ``None`` where none of them can be asked for."""
    preferred = preferable_types(wished)
    if not preferred:
        return None
    request = replace(draft.request, preferred_gpus=preferred)
    return replace(draft, request=request, reasons=(*draft.reasons, reason), plugin=__name__, need=wished[0].need)
