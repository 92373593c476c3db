"""A YARN submission -> Job: its GPU request.

Two ways in: the fields that our placement rule has read off a submission (who, which queue and label, the model's card
and comment), and those of `gpusage yarn submit`, which are the same. YARN does not show the rule the containers that
the application will ask for; the processor changes only those that ask for one GPU, so a job counts as one for one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gpusage_hooks.comment import MODEL_NAMES, parse_comment
from gpusage_hooks.managers import Context, GpuCatalogue
from gpusage_hooks.types import (
    Cluster,
    Code,
    Decision,
    DecisionRequest,
    GpuPool,
    GpuRequest,
    Job,
    RenderedDecision,
    Submitter,
)
from gpusage_hooks.units import MIB
from gpusage_yarn.share_plan import SHARE, WHOLE_GPU, usable_labels

WHOLE = "yarn.io/gpu: 1"

_NUMBER = re.compile(r"[0-9]{1,9}")
_MAXIMUM_CARD_CHARACTERS = 64 * 1024
DECISION_VARIABLE = "GPUSAGE_DECISION"
"""The variable by which a job can see that its GPU became a share."""
USUAL_PROCESSES = 4
"""That a container of another client's master may start: Spark runs several tasks in an executor."""
FALLBACK_AFTER_S = 30
"""After how long without a container the next generation is tried."""


def parse_submission(submission: DecisionRequest, model_names: Sequence[str] = MODEL_NAMES) -> Job:
    """Parse the fields of the placement rule, or of `gpusage yarn submit`.

    Args:
        submission: Of YARN.
        model_names: How models are named here, `Context.model_names`.

    Raises:
        RequestError: The comment is addressed to us and malformed.
    """
    fields = submission.fields
    card, model_request = fields.get("card", ""), parse_comment(fields.get("comment", ""), model_names)
    return Job(
        submission=submission,
        request=read_request(fields, model_request.named if model_request else ()),
        request_text=describe_request(fields),
        model_request=model_request,
        card=card if 0 < len(card) <= _MAXIMUM_CARD_CHARACTERS else None,
        submitter=Submitter(fields=fields, account_field="queue", job_name_field="name"),
    )


def read_request(fields: Mapping[str, str], named: Sequence[str] = ()) -> GpuRequest:
    """Return the request of a container, a whole GPU, or of several that work together; its user *named* these keys.

    Only `gpusage yarn submit` says how large a container is; without that, no label is known to have room for it. Its
    master runs a task again that ran out of memory. Other clients' masters see the failure, and end or count it.
    """
    label, queue = fields.get("label", ""), fields.get("queue", "")

    # Other clients' masters ask for containers of a size that nobody knows before.
    is_ours = _number(fields, "memory_mib") > 0
    is_joined = any(character in label for character in "&|!() ")
    return GpuRequest(
        gpu_count=max(_number(fields, "containers"), 1),
        gpu_type=label or None,
        obstacles=(f"the label expression {label!r} names more than one label",) if is_joined else (),
        partitions=(queue,) if queue else (),
        cpu_count=max(_number(fields, "vcores"), 1),
        host_memory_bytes=_number(fields, "memory_mib") * MIB,
        bindable=is_ours,
        process_count=1 if is_ours or "processes" in named else USUAL_PROCESSES,  # a need is of all that are named
        repeatable=is_ours and fields.get("rescue") != "0",
    )


def _number(fields: Mapping[str, str], name: str) -> int:
    """Return the whole number in field *name*, 0 where there is none."""
    text = fields.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else 0


def describe_request(fields: Mapping[str, str]) -> str:
    """Return the request in YARN's words, for people: ``yarn.io/gpu: 1 on a100``."""
    return f"{WHOLE} on {fields['label']}" if fields.get("label") else WHOLE


def render_decision(job: Job, decision: Decision, cluster: Cluster, context: Context) -> RenderedDecision:
    """Put *decision* into a plan's words: the share, and the generations to try."""
    before = job.request_text
    labels = plan_labels(decision, cluster.within(job.request.partitions).pools, context.catalogue)
    if decision.code is not Code.REWRITE or not labels:
        return RenderedDecision(before=before, after=before, fields=MappingProxyType({}))

    percent = decision.request.mps_thread_percent
    fields = {"set.share": str(percent or WHOLE_GPU), "set.labels": ",".join(labels)}
    if decision.request.thread_cap_percent is not None:
        fields["set.threads"] = str(decision.request.thread_cap_percent)
    if len(labels) > 1:
        fields["set.fallback_after_s"] = str(FALLBACK_AFTER_S)
    if percent is not None and not (job.model_request and job.model_request.workload.slo):
        fields["set.priority"] = "1"  # MPS's, below normal: what has a latency limit goes first
    if percent is not None and job.model_request and job.model_request.workload.mode == "train":
        fields["set.apart"] = "1"  # NCCL takes no two ranks on one GPU
    fields[f"env.{DECISION_VARIABLE}"] = f"share={fields['set.share']}"
    after = describe_plan(percent or WHOLE_GPU, labels)
    return RenderedDecision(before=before, after=after, fields=MappingProxyType(fields))


def describe_plan(percent: int, labels: tuple[str, ...]) -> str:
    """Return the request of a container, for people: ``gpusage.io/share: 40 on a100, then h100``."""
    return f"{SHARE}: {percent} on {', then '.join(labels)}"


def plan_labels(decision: Decision, pools: tuple[GpuPool, ...], catalogue: GpuCatalogue) -> tuple[str, ...]:
    """Return the labels that may run a container of *decision*, the preferred labels first.

    Args:
        decision: Its need says what memory a whole GPU must have; a share is only given where it fits everywhere.
        pools: Those that the queue reaches.
        catalogue: Knows how much memory a GPU has.
    """
    request, need = decision.request, decision.need
    named = (request.gpu_type or "").casefold()
    fitting = [pool for pool in pools if pool.gpu_count > 0 and named in ("", pool.site_type.casefold())]
    if request.bound_types:
        fitting = [pool for pool in fitting if pool.site_type in request.bound_types]
    if request.mps_thread_percent is not None:
        fitting = [pool for pool in fitting if pool.mps_per_gpu]
    elif need is not None:
        # Where no GPU is surely large enough, any may be.
        bytes_ = need.required_bytes.high
        large = [pool for pool in fitting if pool.gpu is None or bytes_ <= catalogue.find(pool.gpu).memory_bytes]
        fitting = large or fitting

    known = {pool.site_type for pool in fitting}
    preferred = [name for name in request.preferred_gpus if name in known]
    return usable_labels([*preferred, *(pool.site_type for pool in fitting)])
