"""What `gpusage yarn submit` will ask for: decided as the daemon decides, then put into a plan.

Invariants:

1. There is always a plan: where nothing is to be changed, it asks for a whole GPU, which is a share of 100.
2. A site that has set a mode other than ``enforce``, or thrown the kill switch, gets whole GPUs.
"""

from __future__ import annotations

import math
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from gpusage.advisor import Advisor
from gpusage.own_settings import settled_request
from gpusage.predictors.times.speedups import speedup
from gpusage.store.numbers import Numbers
from gpusage.store.opening import open_store
from gpusage.verdict import Premises, Verdict, judge
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.managers import GpuCatalogue
from gpusage_hooks.types import Cluster, Code, Decision, GpuNeed, GpuPool, Job, ModelGraph, Rendered
from gpusage_yarn.cluster import MASTER, Size, View, cluster_of
from gpusage_yarn.plan import WHOLE_GPU, Plan, usable_nodes
from gpusage_yarn.queues import find_queue
from gpusage_yarn.render import FALLBACK_AFTER_S, describe_plan, plan_labels

_LIMITS = ("memory_cap_mib", "threads", "priority")
"""What a plan says of a container's processes beside its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A verdict, its request in the plan's own words, and the plan that carries it out.

    The plan is for a whole GPU where the verdict is held back.
    """

    verdict: Verdict
    plan: Plan

    def line(self) -> str:
        """Return the one line that the user sees."""
        decision, after = self.verdict.decision, self.verdict.rendered.after
        if decision.code is Code.DECLINE:
            return f"{after} | {'; '.join(decision.reasons)}"
        if decision.code is Code.REWRITE:
            return self.verdict.line
        return replace(self.verdict, rendered=replace(self.verdict.rendered, before=f"{after}: a whole GPU")).line


def propose(premises: Premises, job: Job, graph: ModelGraph | None, view: View, size: Size) -> Proposal:
    """Return what to ask for; *view* tells which generations have room for a container of *size* at once."""
    queue = find_queue(view.queues, job.submission.fields.get("queue", ""))
    cluster = _usable(cluster_of(view, premises.advisor.catalogue), known=queue is not None)
    verdict = judge(job, cluster, premises, lambda _job, _wish: graph)
    pools = modest_first(premises.advisor, job, graph, cluster).within(job.request.partitions).pools
    catalogue = premises.advisor.catalogue
    wanted = _asking(verdict.decision, pools, view, size, catalogue)
    verdict = replace(verdict, rendered=_in_words_of(verdict.rendered, wanted))
    if verdict.held_back:
        whole = replace(verdict.decision, request=job.request)
        return Proposal(verdict=verdict, plan=_asking(whole, pools, view, size, catalogue))
    fields = verdict.rendered.fields
    cap_mib, threads, priority = (int(fields.get(f"set.{key}", "0")) for key in _LIMITS)
    avoid = usable_nodes(verdict.decision.request.avoided_nodes)
    plan = replace(wanted, memory_cap_mib=cap_mib, threads=threads, priority=priority, avoid=avoid)
    plan = replace(plan, need=fields.get("set.need", ""))
    return Proposal(verdict=verdict, plan=plan)


def _asking(decision: Decision, pools: tuple[GpuPool, ...], view: View, size: Size, catalogue: GpuCatalogue) -> Plan:
    """Return the plan that asks for what *decision* does, first where there is room for a container of *size*."""
    size = replace(size, share=decision.request.mps_thread_percent or WHOLE_GPU)
    view = view.without(decision.request.avoided_nodes)
    labels = tuple(sorted(plan_labels(decision, pools, catalogue), key=lambda label: not view.fits(label, size)))
    return Plan(
        share=size.share,
        labels=labels,
        fallback_after_s=FALLBACK_AFTER_S if len(labels) > 1 else 0,
        memory_mib=size.memory_mib,
        vcores=size.vcores,
    )


def _in_words_of(rendered: Rendered, plan: Plan) -> Rendered:
    """Return *rendered* with the labels in the plan's own order."""
    fields = rendered.fields and {**rendered.fields, "set.labels": ",".join(plan.labels)}
    return replace(rendered, after=describe_plan(plan.share, plan.labels), fields=fields)


def modest_first(advisor: Advisor, job: Job, graph: ModelGraph | None, cluster: Cluster) -> Cluster:
    """Return *cluster* with the oldest GPU types first that are not surely slower than the fastest.

    Types that are too small for the job are left out, whatever was decided. Where nothing is predicted the order
    stays as it is: an old GPU may be too small for a job that nobody knows.
    """
    known = {pool.site_type: advisor.catalogue.find(pool.gpu) for pool in cluster.pools if pool.gpu}
    needs: dict[str, GpuNeed] = {}
    if graph and job.model_request:
        with suppress(GpuUsageError):
            run = settled_request(job.model_request, graph).workload
            predicted = advisor.predict(graph, run, tuple(known.values()))
            needs = dict(zip(known, predicted, strict=True))
    fitting = [need for need in needs.values() if need.fits]
    if not fitting:
        return cluster
    fastest = min(fitting, key=lambda need: need.step_time_s.value)

    def rank(pool: GpuPool) -> tuple[bool, float]:
        need = needs.get(pool.site_type)
        if need is None:
            return True, math.inf
        slower = need != fastest and speedup(fastest, need).low >= advisor.rules.generation.minimum_speedup
        return slower, need.step_time_s.value if slower else known[pool.site_type].launch_year

    too_small = {name for name, need in needs.items() if not need.fits}
    pools = (pool for pool in cluster.pools if pool.site_type not in too_small)
    return replace(cluster, pools=tuple(sorted(pools, key=rank)))


def master_label(view: View, queue: str, labels: tuple[str, ...]) -> str:
    """Return where an application's master goes: nodes without a label where there are some, else where it has room.

    Args:
        view: What there is.
        queue: The one that was named; where none was, any may be the one, so each must reach the nodes without a label.
        labels: The plan's.
    """
    named = find_queue(view.queues, queue) if queue else None
    queues = (named,) if named else view.queues
    reached = ["", *labels] if all(each.opens("") for each in queues) else labels
    there = [label for label in reached if any(_holds(node.total, MASTER) for node in view.of_label(label))]
    free = [label for label in there if view.fits(label, MASTER) and not any(label in each.crowded for each in queues)]
    return [*free, *there, *labels, ""][0]


def _holds(total: Size, wanted: Size) -> bool:
    return total.memory_mib >= wanted.memory_mib and total.vcores >= wanted.vcores


def _usable(cluster: Cluster, *, known: bool) -> Cluster:
    """Return the cluster's shared GPUs; a queue that YARN may make when it is named reaches what YARN lets it reach."""
    pools = tuple(pool for pool in cluster.pools if pool.mps_per_gpu)
    return replace(cluster, pools=pools if known else tuple(replace(pool, partitions=()) for pool in pools))


def record(proposal: Proposal, advisor: Advisor, store_url: str) -> tuple[str, str]:
    """Let plugins and the store know of a decision; return its number there, or ``""`` and why it could not be kept."""
    now_s, verdict = time.time(), proposal.verdict
    number = Numbers().take(now_s)
    decided = verdict.record(origin=verdict.submission.origin, number=number, decided_at_s=now_s)
    with suppress(Exception):  # a plugin that only listens may fail in any way
        advisor.hooks.decision_made(decided)
    try:
        with closing(open_store(store_url)) as store:
            store.record(decided)
    except (GpuUsageError, OSError) as error:
        return "", str(error)
    return number, ""
