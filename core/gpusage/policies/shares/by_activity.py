"""The rule ``activity``: a share is the larger of what the job needs of the GPU's SMs and of its memory.

Invariants (docs/decisions/policies.md):

1. A share holds on every GPU type on which the job may land, for a preference does not confine it.
2. On any GPU, the memory caps of shares that add up to 100 % add up to its memory at most.
3. No more than ``maximum_partners`` jobs fit on one GPU.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gpusage.policies.place import least_cap_bytes, memory_percent, needed_bytes, type_names, uncertainty_reason
from gpusage.policies.shares.landing import keep_whole_gpu, obstacle, shared_places
from gpusage_hooks.types import Candidate, Decision, PolicyInput, SharingRules


def decide(case: PolicyInput, draft: Decision) -> Decision:
    """Put a share in place of the whole GPU where one is enough on each GPU type that the job may land on."""
    rules, where = case.rules.sharing, shared_places(case)
    reason = obstacle(case, where) or next((why for why in map(uncertainty_reason, where) if why), None)
    if reason:
        return keep_whole_gpu(draft, reason, __name__)
    most_bytes = max(needed_bytes(place, case.request) for place in where)
    tightest = max(where, key=lambda place: needed_percent(place, most_bytes, rules))
    share_percent = granted_percent(needed_percent(tightest, most_bytes, rules), rules)
    if share_percent > min(rules.maximum_percent, 100):
        return keep_whole_gpu(draft, _too_much(tightest, most_bytes, rules), __name__)
    request = replace(
        draft.request,
        gpu_count=0,
        mps_thread_percent=share_percent,
        memory_cap_bytes=least_cap_bytes(where, share_percent),
    )
    reasons = (*draft.reasons, f"{share_percent} % of a GPU is enough on {type_names(where)}")
    return replace(draft, request=request, reasons=reasons, plugin=__name__, need=tightest.need)


def needed_percent(place: Candidate, memory_bytes: float, rules: SharingRules) -> int:
    """Return what the job needs of the GPU at *place*, at the pessimistic end, in percent; may exceed 100."""
    return max(_activity_percent(place, rules), memory_percent(place, memory_bytes))


def granted_percent(needed: int, rules: SharingRules) -> int:
    """Return the percentage to ask for: *needed*, rounded up to the step, and no less than partners allow.

    With m partners at most, m + 1 shares must not fit on one GPU, so each is more than 100 / (m + 1) percent.
    """
    step = max(rules.step_percent, 1)
    few_enough = 100 // (max(rules.maximum_partners, 0) + 1) + 1
    least = max(needed, rules.minimum_percent, few_enough)
    return -(-least // step) * step


def _activity_percent(place: Candidate, rules: SharingRules) -> int:
    # Rounded first, so that 0.3 + 0.1 is 40 % and not a hair more.
    return math.ceil(round(100 * (place.need.sm_activity.high + rules.headroom), 6))


def _too_much(tightest: Candidate, memory_bytes: float, rules: SharingRules) -> str:
    """Return which of the job's needs, or which of the site's rules, leaves too little of the GPU for others."""
    if granted_percent(0, rules) > min(rules.maximum_percent, 100):
        return f"the site's rules allow no share ({rules.maximum_partners} jobs per GPU at most)"
    memory = memory_percent(tightest, memory_bytes)
    if memory >= _activity_percent(tightest, rules):
        return f"its memory may take up to {memory} % of a {tightest.name}"
    return f"its SM activity may reach {math.ceil(tightest.need.sm_activity.high * 100)} % on {tightest.name}"
