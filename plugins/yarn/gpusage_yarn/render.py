"""Decision -> a plan for a YARN application.

Invariants:

1. Keys are ``set.X``, a value of the plan, or ``env.X``, a variable of the application master. Nothing else.
2. Labels name generations, best first; a container goes on to the next where the first has had no room for a while.
3. A label that the user named stays the only one; where a share holds on some labels only, no other is named.
"""

from __future__ import annotations

import math
from types import MappingProxyType

from gpusage_hooks import hookimpl
from gpusage_hooks.managers import Context, GpuCatalogue
from gpusage_hooks.types import Cluster, Code, Decision, GpuPool, Job, Rendered
from gpusage_hooks.units import MIB
from gpusage_yarn.neighbours import describe_need
from gpusage_yarn.plan import SHARE, WHOLE_GPU, usable_labels, usable_nodes
from gpusage_yarn.request import MANAGER

DECISION_VARIABLE = "GPUSAGE_DECISION"
"""The variable by which a job can tell that its GPU became a share."""
FALLBACK_AFTER_S = 30
"""After how long without a container the next generation is tried."""


@hookimpl(trylast=True)
def render_decision(job: Job, decision: Decision, cluster: Cluster, context: Context) -> Rendered | None:
    """Put *decision* into a plan's words: the share, its memory, and the generations to try."""
    if job.submission.manager != MANAGER:
        return None
    before = job.request_text
    labels = plan_labels(decision, cluster.within(job.request.partitions).pools, context.catalogue)
    if decision.code is not Code.REWRITE or not labels:
        return Rendered(before=before, after=before, fields=MappingProxyType({}))
    percent = decision.request.mps_thread_percent
    fields = {"set.share": str(percent or WHOLE_GPU), "set.labels": ",".join(labels)}
    if decision.request.thread_cap_percent is not None:
        fields["set.threads"] = str(decision.request.thread_cap_percent)
    cap_bytes = decision.request.memory_cap_bytes
    if cap_bytes is not None:
        fields["set.memory_cap_mib"] = str(math.ceil(cap_bytes / MIB))
    if len(labels) > 1:
        fields["set.fallback_after_s"] = str(FALLBACK_AFTER_S)
    if percent is not None and not (job.model_request and job.model_request.workload.slo):
        fields["set.priority"] = "1"  # MPS's, below normal: what has a latency limit goes first
    fields |= _company(job, decision)
    fields[f"env.{DECISION_VARIABLE}"] = f"share={fields['set.share']}"
    after = describe_plan(percent or WHOLE_GPU, labels)
    return Rendered(before=before, after=after, fields=MappingProxyType(fields))


def _company(job: Job, decision: Decision) -> dict[str, str]:
    """Return what whoever decides on neighbours must know, and the nodes whose jobs are none for it."""
    avoid = usable_nodes(decision.request.avoided_nodes)
    need = describe_need(decision, job.model_request.workload) if job.model_request else ""
    return {f"set.{name}": text for name, text in (("need", need), ("avoid", ",".join(avoid))) if text}


def describe_plan(percent: int, labels: tuple[str, ...]) -> str:
    """Return what a container will ask for, for people: ``gpusage.io/share: 40 on a100, then h100``."""
    return f"{SHARE}: {percent} on {', then '.join(labels)}"


def plan_labels(decision: Decision, pools: tuple[GpuPool, ...], catalogue: GpuCatalogue) -> tuple[str, ...]:
    """Return the labels that may run what *decision* asks for, the preferred ones first.

    Args:
        decision: Its need tells what memory a whole GPU must have; a share is only given where it fits everywhere.
        pools: Those that the queue reaches.
        catalogue: Knows how much memory a GPU has.
    """
    request = decision.request
    named = (request.gpu_type or "").casefold()
    fitting = [pool for pool in pools if pool.gpu_count > 0 and named in ("", pool.site_type.casefold())]
    if request.required_gpus:
        fitting = [pool for pool in fitting if pool.site_type in request.required_gpus]
    if request.mps_thread_percent is not None:
        fitting = [pool for pool in fitting if pool.mps_per_gpu]
    else:
        fitting = [pool for pool in fitting if _is_large_enough(pool, decision, catalogue)] or fitting
    known = {pool.site_type for pool in fitting}
    preferred = [name for name in request.preferred_gpus if name in known]
    return usable_labels([*preferred, *(pool.site_type for pool in fitting)])


def _is_large_enough(pool: GpuPool, decision: Decision, catalogue: GpuCatalogue) -> bool:
    if decision.need is None or pool.gpu is None:
        return True
    return decision.need.memory_bytes.high <= catalogue.find(pool.gpu).memory_bytes
