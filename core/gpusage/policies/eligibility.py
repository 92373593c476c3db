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
        return _keep(case, draft, Code.KEEP, *request.obstacles, *_need_of_several(case))
    if request.gpu_count == 0:
        return _keep(case, draft, Code.DECLINE, "the job asks for no whole GPU")
    if request.gpu_count > 1:
        unchanged = f"the job asks for {request.gpu_count} GPUs, and gpusage changes only requests for one"
        return _keep(case, draft, Code.KEEP, unchanged, *_need_of_several(case))
    if case.workload.gpus > 1:  # its share would be for a part of the model
        return _keep(case, draft, Code.KEEP, _other_count(case))
    if not any(admits(pool, request) for pool in case.cluster.pools):
        wanted = f"GPU of type {request.gpu_type!r}" if request.gpu_type else "GPU"
        return _keep(case, draft, Code.KEEP, f"this cluster has no {wanted}")
    if not admitted_candidates(case):
        return _keep(case, draft, Code.KEEP, "none of the GPU types that the job may use is in the catalogue")
    if request.required_gpus and not can_be_held(case):
        types = ", ".join(request.required_gpus)
        return _keep(case, draft, Code.KEEP, f"the job cannot be bound to {types}, the only types that it allows")
    return None


def _need_of_several(case: PolicyInput) -> tuple[str, ...]:
    """Return what each GPU of a request for several needs where they work together, and if it is another number."""
    run = case.workload
    if case.request.gpu_count <= 1 or run.gpus == 1:
        return ()
    places = admitted_candidates(case)
    if not places:
        return ()
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
    return (need,) if run.gpus == case.request.gpu_count else (need, _other_count(case))


def _other_count(case: PolicyInput) -> str:
    count = case.request.gpu_count
    return f"gpus={case.workload.gpus} is not the {count} GPU{'s' if count > 1 else ''} that the job asks for"


def _keep(case: PolicyInput, draft: Decision, code: Code, *reasons: str) -> Decision:
    return replace(draft, code=code, request=case.request, reasons=reasons, plugin=__name__, final=True)
