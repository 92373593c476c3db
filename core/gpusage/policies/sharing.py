"""What share of a GPU is enough: by its price (`by_price`), or by the rule ``activity`` in this module.

By activity, a share is the larger of what the job needs of the GPU's SMs and of its memory.

Invariants of the rule ``activity`` (docs/decisions/0002):

1. A share holds on every GPU type on which the job may land, for a preference does not confine it.
2. On any GPU, the memory caps of shares that add up to 100 % add up to its memory at most.
3. No more than ``maximum_partners`` jobs fit on one GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gpusage.policies import by_price
from gpusage.policies.place import LIMITING, admitted, doubt, memory_cap_bytes, names, not_understood
from gpusage_hooks.types import Case, Decision, Place, SharingRules


def decide_sharing(case: Case, draft: Decision) -> Decision | None:
    """Put a share in place of the whole GPU where one is enough on each GPU type that the job may land on."""
    rules = case.rules.sharing
    if not rules.enabled or draft.request.gpu_count != 1:
        return None
    if rules.rule == "price":
        return by_price.decide(case, draft)
    where = [place for place in admitted(case) if place.pool.mps_per_gpu]
    obstacle = _obstacle(case, where)
    if obstacle:
        return _whole(draft, obstacle)
    cap_bytes = memory_cap_bytes(where)
    tightest = max(where, key=lambda place: needed_percent(place, cap_bytes, rules))
    share_percent = granted_percent(needed_percent(tightest, cap_bytes, rules), rules)
    if share_percent > min(rules.maximum_percent, 100):
        return _whole(draft, _too_much(tightest, cap_bytes, rules))
    request = replace(draft.request, gpu_count=0, mps_thread_percent=share_percent, memory_cap_bytes=cap_bytes)
    reasons = (*draft.reasons, f"{share_percent} % of a GPU is enough on {names(where)}")
    return replace(draft, request=request, reasons=reasons, plugin=__name__, need=tightest.need)


def needed_percent(place: Place, cap_bytes: int, rules: SharingRules) -> int:
    """Return what the job needs of the GPU at *place*, at the pessimistic end, in percent; may exceed 100."""
    return max(_activity_percent(place, rules), _memory_percent(place, cap_bytes))


def granted_percent(needed: int, rules: SharingRules) -> int:
    """Return the percentage to ask for: *needed*, rounded up to the step, and no less than partners allow.

    With m partners at most, m + 1 shares must not fit on one GPU, so each is more than 100 / (m + 1) percent.
    """
    step = max(rules.step_percent, 1)
    few_enough = 100 // (max(rules.maximum_partners, 0) + 1) + 1
    least = max(needed, rules.minimum_percent, few_enough)
    return -(-least // step) * step


def _activity_percent(place: Place, rules: SharingRules) -> int:
    # Rounded first, so that 0.3 + 0.1 is 40 % and not a hair more.
    return math.ceil(round(100 * (place.need.sm_activity.high + rules.headroom), 6))


def _memory_percent(place: Place, cap_bytes: int) -> int:
    return -(-100 * cap_bytes // place.gpu.memory_bytes)


def _obstacle(case: Case, where: Sequence[Place]) -> str | None:
    """Return why no share can be asked for, whatever its percentage."""
    if case.cluster.unshared:
        return "; ".join(dict.fromkeys(case.cluster.unshared.values()))
    unknown = [pool.site_type for pool in not_understood(case) if pool.mps_per_gpu]
    if unknown:
        return f"a share could land on {', '.join(unknown)}, which is not in the catalogue"
    if not where:
        return "no GPU that it may use can be shared"
    unshared = [place for place in admitted(case) if place not in where]
    if unshared:
        # A manager refuses a job that only these could run: what else ties it to them is not for us to know.
        return f"it may be bound to {names(unshared)}, which cannot be shared"
    old = [place for place in where if place.gpu.compute_capability < LIMITING]
    if old:
        return f"a share could land on {names(old)}, where MPS cannot hold a job to its share (older than Volta)"
    too_small = [place for place in where if not place.need.fits]
    if too_small:
        return f"a share could land on {names(too_small)}, which may be too small"
    return next((reason for reason in map(doubt, where) if reason), None)


def _too_much(tightest: Place, cap_bytes: int, rules: SharingRules) -> str:
    """Say which of the job's needs, or which of the site's rules, leaves too little of the GPU for others."""
    if granted_percent(0, rules) > min(rules.maximum_percent, 100):
        return f"the site's rules allow no share ({rules.maximum_partners} jobs per GPU at most)"
    memory = _memory_percent(tightest, cap_bytes)
    if memory >= _activity_percent(tightest, rules):
        return f"its memory may take up to {memory} % of a {tightest.name}"
    return f"its SM activity may reach {math.ceil(tightest.need.sm_activity.high * 100)} % on {tightest.name}"


def _whole(draft: Decision, reason: str) -> Decision:
    return replace(draft, reasons=(*draft.reasons, f"a whole GPU is kept: {reason}"), plugin=__name__)
