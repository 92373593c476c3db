"""The stage ``deadline``: the cheapest GPU types that end a job by its deadline.

A run is assumed to start now, and to take the pessimistic end of its time: nobody knows how long the job will wait.

Invariants:

1. A deadline only makes a job prefer GPUs, or keeps its GPU whole. It never holds the job to a type.
2. Where the length of the run is not known, nothing makes the job slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from gpusage.devices.catalogue import name_key
from gpusage.policies.candidates import preferable_types, rankable_candidates, step_time_s, type_names
from gpusage.predictors.intervals import scaled
from gpusage_hooks.types import Decision, Gpu, GpuNeed, Interval, PolicyInput
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
    def cost_order(self) -> tuple[bool, float]:
        """Return the sort key: runs with a price first, and of those without one the slowest."""
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


def latest_step_s(policy_input: PolicyInput) -> float | None:
    """Return how long a step may take so that the job of *policy_input* ends by its deadline; ``None`` for no limit."""
    deadline_s, steps = policy_input.request.deadline_s, policy_input.workload.steps
    return deadline_s / steps if deadline_s is not None and steps else None


def decide_deadline(policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Prefer the cheapest GPU type with room on which the run ends in time; where none has room, all such types."""
    request, rules = policy_input.request, policy_input.rules
    if latest_step_s(policy_input) is None or request.gpu_type is not None or not rules.generation.enabled:
        return None

    prices, steps = rules.money.price_per_hour, policy_input.workload.steps or 0
    where = rankable_candidates(policy_input)
    runs = {each.name: run_of(each.need, steps, price(each.gpu, prices)) for each in where}
    in_time = [each for each in where if runs[each.name].ends_within(request.deadline_s or 0)]

    # Where every GPU is in time and none has a price, the deadline is no reason to prefer one.
    if not where or (len(in_time) == len(where) and not any(run.cost for run in runs.values())):
        return None

    by_cost = sorted(in_time, key=lambda candidate: runs[candidate.name].cost_order)
    roomy = [candidate for candidate in by_cost if candidate.pool.has_room(WHOLE_PERCENT)][:1]
    if not in_time:
        chosen = [min(where, key=step_time_s)]
        reason = f"no GPU here certainly finishes it by its deadline; {chosen[0].name} is the fastest with a prediction"
    elif roomy:
        chosen = roomy
        kind = "slowest" if runs[roomy[0].name].cost is None else "cheapest"
        reason = f"{type_names(roomy)} is the {kind} with room now that ends it by its deadline"
    else:
        chosen = by_cost
        reason = f"ends by its deadline on {type_names(by_cost)}"

    preferred = preferable_types(chosen)
    if not preferred:  # none of them has a name that a job can request
        return None
    preferring = replace(draft.request, preferred_gpus=preferred)
    return replace(draft, request=preferring, reasons=(*draft.reasons, reason), plugin=__name__, need=chosen[0].need)
