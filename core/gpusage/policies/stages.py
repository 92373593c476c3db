"""The policies that gpusage comes with, for each stage of a decision; the first two are here.

``eligibility``: only a request for whole GPUs may be changed, if nothing forbids it. ``fit``: the workload fits on GPUs
whose memory holds the pessimistic end of its need; of several GPUs, of its least need in any way that they may run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from gpusage.policies.candidates import admits, admitted_candidates, memory_share, type_names
from gpusage.policies.latency import decide_slo
from gpusage.policies.neighbours import decide_veto
from gpusage.policies.preference import decide_deadline, decide_generation
from gpusage.policies.share_choice import can_be_held, large_enough_types
from gpusage.policies.sharing import decide_sharing
from gpusage.store.annotation import EXCLUDES
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Code, Decision, PolicyInput, Stage
from gpusage_hooks.units import gib

Policy = Callable[[PolicyInput, Decision], Decision | None]


@hookimpl(trylast=True)
def decide(stage: Stage, policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Decide *stage* by the policy that gpusage comes with."""
    return POLICIES[stage](policy_input, draft)


def decide_eligibility(policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Refuse jobs that are not ours (DECLINE) or cannot safely be changed (KEEP); ``None`` lets the job through."""
    # The first obstacle counts: what makes the request none of ours comes before what makes it unfit to change.
    request, cluster = policy_input.request, policy_input.cluster
    code: Code = Code.KEEP
    reasons: tuple[str, ...] = ()
    if request.mps_thread_percent is not None:
        reasons = ("the job asks for a share of a GPU already",)
    elif request.obstacles:
        reasons = (*request.obstacles, *_need_of_several(policy_input))
    elif request.gpu_count == 0:
        code, reasons = Code.DECLINE, ("the job asks for no whole GPU",)
    elif policy_input.workload.gpus not in (1, request.gpu_count):  # nothing is known of so many, or of a part
        reasons = _need_of_several(policy_input) or (_other_count(policy_input),)
    elif request.gpu_count > 1 and any(each.need.source == "history" for each in policy_input.candidates):
        reasons = (f"the job asks for {request.gpu_count} GPUs, and history decides only on one",)
    elif not any(admits(pool, request) for pool in cluster.pools):
        reasons = (f"no node that it may use has a GPU{f' of type {request.gpu_type!r}' if request.gpu_type else ''}",)
    elif not admitted_candidates(policy_input):
        reasons = ("none of the GPU types that the job may use is in the catalogue",)
    elif request.required_gpus and not can_be_held(policy_input):
        types = ", ".join(request.required_gpus)
        reasons = (f"the job cannot be bound to {types}, the only types that it allows",)

    if not reasons:
        return None
    return replace(draft, code=code, request=request, reasons=reasons, plugin=__name__, final=True)


def _need_of_several(policy_input: PolicyInput) -> tuple[str, ...]:
    """Return the need of each GPU where several work together, and whether the job requests another number."""
    request, run = policy_input.request, policy_input.workload
    candidates = admitted_candidates(policy_input)
    if request.gpu_count <= 1 or not candidates:
        return ()

    if run.gpus == 1:
        way = "with a copy each"
    elif run.mode == "train":
        copy_size = run.gpus_per_replica
        way = f"by {run.strategy}{' with checkpointing' if run.checkpointing else ''}, batch {run.batch_size} "
        way += f"for each {copy_size}" if copy_size > 1 else "each"
    else:
        way = "that compute one after the other" if run.strategy == "pipeline" else "that divide each layer"

    # The GPU type that needs most: which of them the job will get is not known.
    memory = max((candidate.need.required_bytes for candidate in candidates), key=lambda needed: needed.high)
    count = request.gpu_count if run.gpus == 1 else run.gpus
    need = f"on {count} GPUs {way}, a GPU needs {gib(memory.value)} (up to {gib(memory.high)})"

    # What is too small in any way, the next stage says, if there is one.
    tight = [each for each in candidates if not each.need.fits]
    too_small = [each for each in tight if not each.least_need.fits]
    dividing = type_names(each for each in tight if each not in too_small)
    if too_small and (request.obstacles or count != request.gpu_count):
        need += f", more than {type_names(too_small)} has"
    if dividing:
        need += f", more than {dividing} has unless its GPUs divide more"
    return (need,) if count == request.gpu_count else (need, _other_count(policy_input))


def _other_count(policy_input: PolicyInput) -> str:
    count = policy_input.request.gpu_count
    return f"gpus={policy_input.workload.gpus} is not the {count} GPU{'s' if count > 1 else ''} that the job asks for"


def decide_fit(policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Keep the request where the workload may fit nowhere; else keep it off the GPUs that it is too large for.

    A job that fits nowhere is not held back: a prediction is not a proof, and the user may know better.
    """
    candidates = admitted_candidates(policy_input)
    if not candidates:
        return None

    reasons = (*draft.reasons, *(_need_of_several(policy_input) if policy_input.request.gpu_count > 1 else ()))
    too_small = [candidate for candidate in candidates if not candidate.least_need.fits]
    if len(too_small) == len(candidates):
        largest = max(candidates, key=lambda candidate: candidate.gpu.memory_bytes)
        reason = (
            f"may need up to {gib(largest.least_need.required_bytes.high)}, more than any GPU that it may use has "
            f"(the largest, {largest.name}, has {gib(largest.gpu.memory_bytes)})"
        )
        unchanged = replace(draft, code=Code.KEEP, request=policy_input.request, need=largest.need, final=True)
        return replace(unchanged, reasons=(*reasons, reason), plugin=__name__)

    required = large_enough_types(policy_input)
    if too_small:
        # Only a condition keeps the job off them: a preference is tried first, and any GPU is taken next.
        avoided = [candidate for candidate in too_small if required and candidate.name not in required]
        others = [candidate for candidate in too_small if candidate not in avoided]
        most = gib(max(candidate.least_need.required_bytes.high for candidate in too_small))
        reasons += (f"{EXCLUDES}{type_names(avoided)}: may need up to {most}",) if avoided else ()
        reasons += (f"may need up to {most}, more than {type_names(others)} has",) if others else ()

    request = replace(draft.request, required_gpus=required or draft.request.required_gpus)
    tightest = max(candidates, key=lambda candidate: memory_share(candidate).high)
    return replace(draft, request=request, need=tightest.need, reasons=reasons, plugin=__name__)


POLICIES: Mapping[Stage, Policy] = MappingProxyType(
    {
        "eligibility": decide_eligibility,
        "fit": decide_fit,
        "deadline": decide_deadline,
        "generation": decide_generation,
        "sharing": decide_sharing,
        "slo": decide_slo,
        "veto": decide_veto,
    }
)
