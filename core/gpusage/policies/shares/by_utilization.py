"""The rule ``utilization``: jobs share a GPU where their known utilizations add up to 100 % at most.

Yeung et al. pack jobs by GPU utilization, a few on a GPU, and limit nobody's threads. Only a utilization that the user
or an earlier run knows counts: what a graph shows is too inexact. What a job costs beside such partners is not
predicted, so nothing is promised (docs/decisions/policies.md).

Invariants:

1. A share is no less than the utilization on any GPU type on which the job may land, at the pessimistic end.
2. On any GPU, the memory caps of shares that add up to 100 % add up to its memory at most.
3. No more than ``maximum_packed`` jobs fit on one GPU.

Source:
    Yeung et al., "Towards GPU Utilization Prediction for Cloud Deep Learning", HotCloud 2020.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gpusage.policies.place import least_cap_bytes, memory_percent, needed_bytes, type_names
from gpusage.policies.shares.landing import keep_whole_gpu, obstacle, shared_places
from gpusage_hooks.types import Candidate, Decision, PolicyInput, SharingRules
from gpusage_hooks.units import WHOLE_PERCENT

UNKNOWN = "its GPU utilization is not known on {}; write what nvidia-smi showed when it ran alone, utilization=60"


def decide(case: PolicyInput, draft: Decision) -> Decision:
    """Put a share as large as the known utilization in place of the whole GPU, with all of the threads."""
    where, rules = shared_places(case), case.rules.sharing
    reason = _refusal(case, where)
    if reason:
        return keep_whole_gpu(draft, reason, __name__)
    most_bytes = max(needed_bytes(place, case.request) for place in where)
    tightest = max(where, key=lambda place: _needed_percent(place, most_bytes))
    share_percent = max(_needed_percent(tightest, most_bytes), _least_percent(rules))
    if share_percent > min(rules.maximum_percent, WHOLE_PERCENT):
        return keep_whole_gpu(draft, _too_much(tightest, most_bytes, rules), __name__)
    request = replace(
        draft.request,
        gpu_count=0,
        mps_thread_percent=share_percent,
        thread_cap_percent=WHOLE_PERCENT,
        memory_cap_bytes=least_cap_bytes(where, share_percent),
    )
    packed = f"packed by its GPU utilization, {_percent(tightest)} % by {_source(tightest)}, on {type_names(where)}"
    limit = f"at most {rules.maximum_packed} jobs on a GPU, none limited in its threads, so no slowdown is promised"
    return replace(draft, request=request, reasons=(*draft.reasons, packed, limit), plugin=__name__, need=tightest.need)


def _refusal(case: PolicyInput, where: tuple[Candidate, ...]) -> str | None:
    """Return why the job cannot be packed, whatever its utilization."""
    if case.workload.slowdown is not None and case.workload.slowdown <= 1:
        return "no slowdown is accepted"
    why = obstacle(case, where)
    if why:
        return why
    strange = [place for place in where if not place.need.familiar]
    if strange:
        return f"on {type_names(strange)} the workload is unlike those that the prediction was fitted on"
    unknown = [place for place in where if place.known.gpu_utilization is None]
    return UNKNOWN.format(type_names(unknown)) if unknown else None


def _needed_percent(place: Candidate, memory_bytes: float) -> int:
    return max(_percent(place), memory_percent(place, memory_bytes))


def _least_percent(rules: SharingRules) -> int:
    """Return the least share with which no more jobs fit on a GPU than the site allows."""
    return max(rules.minimum_percent, WHOLE_PERCENT // (rules.maximum_packed + 1) + 1)


def _percent(place: Candidate) -> int:
    """Return the utilization that is known at *place*, at its upper end, in percent; rounded first: 0.28 is 28."""
    figure = place.known.gpu_utilization
    return math.ceil(round(WHOLE_PERCENT * figure.interval.high, 6)) if figure else WHOLE_PERCENT


def _source(place: Candidate) -> str:
    figure = place.known.gpu_utilization
    return figure.source if figure else ""


def _too_much(tightest: Candidate, memory_bytes: float, rules: SharingRules) -> str:
    """Return what leaves too little of the GPU for others."""
    if _least_percent(rules) > min(rules.maximum_percent, WHOLE_PERCENT):
        return f"the site's rules allow no share ({rules.maximum_packed} jobs per GPU at most)"
    memory = memory_percent(tightest, memory_bytes)
    if memory >= _percent(tightest):
        return f"its memory may take up to {memory} % of a {tightest.name}"
    return f"it keeps a {tightest.name} busy for {_percent(tightest)} % of the time, by {_source(tightest)}"
