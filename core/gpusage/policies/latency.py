"""The stage ``slo``: an inference job keeps its promised latency, which 95 of 100 requests stay below.

Partners slow a step down by an amount that nobody knows when the job is submitted. The site's ``latency_margin`` is the
part of the promised latency that the job alone may fill; at 0.5, a step may take twice as long and the promise holds.

Invariants:

1. More requests a second, or a longer step, never make the latency shorter.
2. Where requests come faster than steps serve them, it is infinite.

Source:
    M/D/1: requests come at random, one server takes the same time for each. Until one service time the distribution of
    the wait is exact (Erlang, 1909); beyond it is the Cramer-Lundberg approximation, for example Asmussen, Applied
    Probability and Queues, chapter XIII. tests/unit/policies/test_latency.py compares it with a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gpusage.policies.candidates import (
    admitted_candidates,
    preferable_types,
    rankable_candidates,
    step_time_s,
    type_names,
)
from gpusage_hooks.types import Candidate, Decision, PolicyInput, Slo, Workload
from gpusage_hooks.units import seconds

REQUESTS_IN_TIME = 0.95
"""The part of the requests for which a promised latency holds: the same end as that of every predicted figure."""
_HALVINGS = 60
"""Of the interval around the decay rate: as exact as a float is."""


def latency_s(step_time_s: float, workload: Workload) -> float:
    """Return the seconds that 95 of 100 requests stay below; infinite where steps cannot keep up.

    A step serves one batch. Where the rate of requests is known, batches queue for the GPU. The time until a request's
    batch is full depends on the server's own settings, and is not counted.

    Args:
        step_time_s: Seconds of one step, at the end that counts.
        workload: Its batch size, and the rate of its promise.
    """
    rate_per_s = (workload.slo.rate_per_s if workload.slo else None) or 0.0
    utilization = rate_per_s * step_time_s / workload.batch_size
    return step_time_s * (1 + waited_services(utilization))


def waited_services(utilization: float, in_time: float = REQUESTS_IN_TIME) -> float:
    """Return how many service times a part *in_time* of the requests waits at most, where a server is busy so much."""
    if utilization >= 1:
        return math.inf
    if 1 - utilization >= in_time:
        return 0.0

    # Exact up to one service time.
    within_one = math.log(in_time / (1 - utilization)) / utilization
    if within_one <= 1:
        return within_one

    # Beyond, the tail falls as factor * exp(-rate * services). The rate solves utilization * (exp(x) - 1) = x.
    low, high = 0.0, -2 * math.log(utilization) + 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if utilization * math.expm1(middle) < middle else (low, middle)
    rate = high
    if rate <= 0:
        return math.inf

    # Near a utilization of 1 both ends of the factor go to 0, and the factor itself to 1.
    below = utilization * math.exp(rate) - 1
    factor = (1 - utilization) / below if below > 0 else 1.0
    return max(math.log(factor / (1 - in_time)) / rate, 1.0)


def decide_slo(policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Keep a GPU whole where the promise may break beside partners; prefer GPUs that keep it where others do not."""
    slo = policy_input.workload.slo
    if not policy_input.rules.slo.enabled or slo is None or policy_input.workload.mode != "infer":
        return None

    decided = draft if draft.request.bound_types else _prefer_fast_enough(policy_input, slo, draft)
    if decided.request.mps_thread_percent is not None:
        reason = _why_whole(policy_input, slo, decided)
        if reason:
            whole = replace(
                decided.request,
                gpu_count=policy_input.request.gpu_count,
                mps_thread_percent=None,
                thread_cap_percent=None,
                memory_cap_bytes=None,
            )
            decided = replace(decided, request=whole, reasons=(f"a whole GPU is kept: {reason}",))
    return None if decided == draft else replace(decided, plugin=__name__)


def _why_whole(policy_input: PolicyInput, slo: Slo, draft: Decision) -> str:
    """Return why the share of *draft* may break the promise on a GPU that it may land on; empty where it keeps it."""
    # A share that has a price was chosen because it keeps the promise (`share_price.keeps_latency`).
    if draft.need is not None and draft.need.share_percent == draft.request.mps_thread_percent:
        return ""

    where = [candidate for candidate in admitted_candidates(policy_input) if candidate.pool.mps_per_gpu]
    worst = max(where, key=lambda candidate: candidate.need.step_time_s.high, default=None)
    if worst is None:
        return "the promised latency could not be checked"

    margin = min(policy_input.rules.slo.latency_margin, 1.0)
    slowed_s = worst.need.step_time_s.high / margin if margin > 0 else math.inf
    expected_s = latency_s(slowed_s, policy_input.workload)
    if expected_s <= slo.latency_s:
        return ""
    if math.isinf(expected_s) and slo.rate_per_s is not None and margin > 0:
        return f"beside partners {worst.name} might not keep up with {slo.rate_per_s:g} requests/s"
    return f"beside partners the promised {seconds(slo.latency_s)} might not hold on {worst.name}"


def _prefer_fast_enough(policy_input: PolicyInput, slo: Slo, draft: Decision) -> Decision:
    """Return *draft* with a preference for GPUs that alone keep the promise; for the fastest where none does."""
    where = rankable_candidates(policy_input)
    met = [
        candidate
        for candidate in where
        if latency_s(candidate.need.step_time_s.high, policy_input.workload) <= slo.latency_s
    ]
    if len(met) == len(where):
        return draft

    if not met:
        # Earlier reasons are of GPUs to prefer, and that preference is replaced.
        reason = f"the promised {seconds(slo.latency_s)} may not hold on any GPU here"
        fastest = _by_speed(policy_input, where)[:1] if len(where) > 1 else ()
        return replace(draft, request=replace(draft.request, preferred_gpus=fastest), reasons=(reason,))

    # An earlier stage's preference stays, as far as it keeps the promise.
    names = {candidate.name for candidate in met}
    preferred = tuple(name for name in draft.request.preferred_gpus if name in names) or _by_speed(policy_input, met)
    missed = type_names(candidate for candidate in where if candidate not in met)
    reason = f"the promised {seconds(slo.latency_s)} may not hold on {missed}"
    request = replace(draft.request, preferred_gpus=preferred)
    return replace(draft, request=request, reasons=(*draft.reasons, reason))


def _by_speed(policy_input: PolicyInput, where: Sequence[Candidate]) -> tuple[str, ...]:
    """Return the types of *where* that can be requested, fastest first; none where the user named a type."""
    if policy_input.request.gpu_type is not None or not policy_input.rules.generation.enabled:
        return ()
    return preferable_types(sorted(where, key=step_time_s))
