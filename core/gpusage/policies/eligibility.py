"""Which requests may be changed at all: those for one whole GPU, if nothing forbids sharing it."""

from __future__ import annotations

from dataclasses import replace

from gpusage.policies.place import admits, admitted
from gpusage_hooks.types import Case, Code, Decision


def decide_eligibility(case: Case, draft: Decision) -> Decision | None:
    """Refuse what is not ours (DECLINE) and what cannot safely be changed (KEEP); ``None`` lets the job through."""
    request = case.request
    if request.mps_thread_percent is not None:
        return _refused(case, draft, Code.KEEP, "the job asks for a share of a GPU already")
    if request.obstacles:
        return _refused(case, draft, Code.KEEP, *request.obstacles)
    if request.gpu_count == 0:
        return _refused(case, draft, Code.DECLINE, "the job asks for no whole GPU")
    if request.gpu_count > 1:
        return _refused(
            case, draft, Code.KEEP, f"the job asks for {request.gpu_count} GPUs, and only a request for one is changed"
        )
    if not any(admits(pool, request) for pool in case.cluster.pools):
        wanted = f"GPU of type {request.gpu_type!r}" if request.gpu_type else "GPU"
        return _refused(case, draft, Code.KEEP, f"no {wanted} was seen in this cluster")
    if not admitted(case):
        return _refused(case, draft, Code.KEEP, "none of the GPU types that the job may use is in the catalogue")
    return None


def _refused(case: Case, draft: Decision, code: Code, *reasons: str) -> Decision:
    return replace(draft, code=code, request=case.request, reasons=reasons, plugin=__name__, final=True)
