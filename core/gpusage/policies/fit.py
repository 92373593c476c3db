"""Where the workload fits: on GPUs whose memory holds the pessimistic end of what it needs."""

from __future__ import annotations

from dataclasses import replace

from gpusage.policies.place import admitted_candidates, memory_share, type_names
from gpusage_hooks.types import Candidate, Code, Decision, PolicyInput
from gpusage_hooks.units import gib


def decide_fit(case: PolicyInput, draft: Decision) -> Decision | None:
    """Keep the request where the workload may fit nowhere; else name the GPUs that it may be too large for.

    A job that may not fit is not held back: a prediction is not a proof, and the user may know better.
    """
    where = admitted_candidates(case)
    if not where:
        return None
    tightest = max(where, key=lambda place: memory_share(place).high)
    too_small = tuple(place for place in where if not place.need.fits)
    if len(too_small) == len(where):
        return _refuse(case, draft, where)
    reasons = draft.reasons
    if too_small:
        high = max(place.need.required_bytes.high for place in too_small)
        reasons = (*reasons, f"may need up to {gib(high)}, more than {type_names(too_small)} has")
    return replace(draft, need=tightest.need, reasons=reasons, plugin=__name__)


def _refuse(case: PolicyInput, draft: Decision, where: tuple[Candidate, ...]) -> Decision:
    largest = max(where, key=lambda place: place.gpu.memory_bytes)
    reason = (
        f"may need up to {gib(largest.need.required_bytes.high)}, more than any GPU that it may use has "
        f"(the largest, {largest.name}, has {gib(largest.gpu.memory_bytes)})"
    )
    return replace(
        draft,
        code=Code.KEEP,
        request=case.request,
        reasons=(*draft.reasons, reason),
        plugin=__name__,
        need=largest.need,
        final=True,
    )
