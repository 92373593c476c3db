"""Which requests may be changed at all: those for one whole GPU, if nothing forbids sharing it."""

from __future__ import annotations

from dataclasses import replace

from gpusage.policies.place import admits, admitted_candidates, type_names
from gpusage.policies.shares.choice import can_be_held
from gpusage_hooks.types import Code, Decision, PolicyInput
from gpusage_hooks.units import gib


def decide_eligibility(case: PolicyInput, draft: Decision) -> Decision | None:
    """Refuse what is not ours (DECLINE) and what cannot safely be changed (KEEP); ``None`` lets the job through."""
    request = case.request
    if request.mps_thread_percent is not None:
        return _keep(case, draft, Code.KEEP, "the job asks for a share of a GPU already")
    if request.obstacles:
        return _keep(case, draft, Code.KEEP, *request.obstacles)
    if request.gpu_count == 0:
        return _keep(case, draft, Code.DECLINE, "the job asks for no whole GPU")
    if request.gpu_count > 1:
        return _keep(case, draft, Code.KEEP, *_several(case))
    if not any(admits(pool, request) for pool in case.cluster.pools):
        wanted = f"GPU of type {request.gpu_type!r}" if request.gpu_type else "GPU"
        return _keep(case, draft, Code.KEEP, f"this cluster has no {wanted}")
    if not admitted_candidates(case):
        return _keep(case, draft, Code.KEEP, "none of the GPU types that the job may use is in the catalogue")
    if request.required_gpus and not can_be_held(case):
        types = ", ".join(request.required_gpus)
        return _keep(case, draft, Code.KEEP, f"the job cannot be bound to {types}, the only types that it allows")
    return None


def _several(case: PolicyInput) -> tuple[str, ...]:
    """Return why a request for several GPUs is kept, and what each of them needs where they train together."""
    unchanged_reason = f"the job asks for {case.request.gpu_count} GPUs, and gpusage changes only requests for one"
    places, run = admitted_candidates(case), case.workload
    if run.gpus == 1 or not places:
        return (unchanged_reason,)
    memory = max((place.need.required_bytes for place in places), key=lambda needed: needed.high)
    of_copy = run.gpus_per_replica
    too_small = type_names([place for place in places if not place.need.fits])
    way = (
        f"by {run.strategy}, batch {run.batch_size} {f'for each {of_copy}' if of_copy > 1 else 'each'}"
        if run.mode == "train"
        else "that compute one after the other"
        if run.strategy == "pipeline"
        else "that divide each layer"
    )
    need = f"on {run.gpus} GPUs {way}, a GPU needs {gib(memory.value)} (up to {gib(memory.high)})" + (
        f", more than {too_small} has" if too_small else ""
    )
    if run.gpus == case.request.gpu_count:
        return unchanged_reason, need
    return unchanged_reason, need, f"gpus={run.gpus} is not the {case.request.gpu_count} GPUs that the job asks for"


def _keep(case: PolicyInput, draft: Decision, code: Code, *reasons: str) -> Decision:
    return replace(draft, code=code, request=case.request, reasons=reasons, plugin=__name__, final=True)
