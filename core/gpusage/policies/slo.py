"""Keeps the latency that an inference job promises: the job gets a whole GPU if partners could break the promise.

Partners slow a step down by an amount that nobody knows when the job is submitted. The site's ``latency_margin`` says
what part of the promised latency the job alone may fill; at 0.5, a step may take twice as long and the promise holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gpusage.policies.latency import latency_s
from gpusage.policies.place import admitted_candidates, preferable_types, rankable_candidates, step_time_s, type_names
from gpusage_hooks.types import Candidate, Decision, PolicyInput, Slo
from gpusage_hooks.units import seconds


def decide_slo(case: PolicyInput, draft: Decision) -> Decision | None:
    """Keep a GPU whole where the promise may break beside partners; prefer GPUs that keep it where others do not."""
    slo = case.workload.slo
    if not case.rules.slo.enabled or slo is None or case.workload.mode != "infer":
        return None
    decided = draft if draft.request.bound_types else _prefer_those_that_meet(case, slo, draft)
    if decided.request.mps_thread_percent is not None:
        decided = _protect(case, slo, decided)
    return None if decided == draft else replace(decided, plugin=__name__)


def _protect(case: PolicyInput, slo: Slo, draft: Decision) -> Decision:
    """Return *draft* with the whole GPU again where a share may break the promise on a GPU that it may land on.

    If the share has a price, the choice of the share already kept the promise.
    """
    if draft.need is not None and draft.need.share_percent == draft.request.mps_thread_percent:
        return draft
    margin = min(case.rules.slo.latency_margin, 1.0)
    where = [place for place in admitted_candidates(case) if place.pool.mps_per_gpu]
    worst = max(where, key=lambda place: place.need.step_time_s.high, default=None)
    if worst is None:
        return _without_share(case, draft, "the promised latency could not be checked")
    slowed_s = worst.need.step_time_s.high / margin if margin > 0 else math.inf
    expected_s = latency_s(slowed_s, case.workload)
    if expected_s <= slo.latency_s:
        return draft
    if math.isinf(expected_s) and slo.rate_per_s is not None and margin > 0:
        reason = f"beside partners {worst.name} might not keep up with {slo.rate_per_s:g} requests/s"
    else:
        reason = f"beside partners the promised {seconds(slo.latency_s)} might not hold on {worst.name}"
    return _without_share(case, draft, reason)


def _without_share(case: PolicyInput, draft: Decision, reason: str) -> Decision:
    whole = replace(
        draft.request,
        gpu_count=case.request.gpu_count,
        mps_thread_percent=None,
        thread_cap_percent=None,
        memory_cap_bytes=None,
    )
    return replace(draft, request=whole, reasons=(f"a whole GPU is kept: {reason}",))


def _prefer_those_that_meet(case: PolicyInput, slo: Slo, draft: Decision) -> Decision:
    """Return *draft* with a preference for GPUs that alone keep the promise; for the fastest where none does."""
    where = rankable_candidates(case)
    met = [place for place in where if latency_s(place.need.step_time_s.high, case.workload) <= slo.latency_s]
    if len(met) == len(where):
        return draft
    if not met:
        reason = f"the promised {seconds(slo.latency_s)} may not hold on any GPU here"
        fastest = _by_speed(case, where)[:1] if len(where) > 1 else ()
        request = replace(draft.request, preferred_gpus=fastest)
        return replace(draft, request=request, reasons=(reason,))
    missed = type_names(place for place in where if place not in met)
    reason = f"the promised {seconds(slo.latency_s)} may not hold on {missed}"
    preferred = [name for name in draft.request.preferred_gpus if name in {place.name for place in met}]
    wished = tuple(preferred) or _by_speed(case, met)
    return replace(draft, request=replace(draft.request, preferred_gpus=wished), reasons=(*draft.reasons, reason))


def _by_speed(case: PolicyInput, where: Sequence[Candidate]) -> tuple[str, ...]:
    """Return the types of *where* that can be asked for, fastest first; none where the user named a type."""
    if case.request.gpu_type is not None or not case.rules.generation.enabled:
        return ()
    return preferable_types(sorted(where, key=step_time_s))
