"""Planning a submission of `gpusage yarn submit`: decided as the daemon decides, then translated into a plan.

Invariants:

1. There is always a plan: where nothing is to be changed, it asks for a whole GPU, which is a share of 100.
2. A site that has set a mode other than ``enforce``, or thrown the kill switch, gets whole GPUs.
"""

from __future__ import annotations

import math
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from gpusage.decisions.advisor import Advisor
from gpusage.decisions.outcome import Outcome
from gpusage.decisions.prediction import request_with_model_settings
from gpusage.policies.candidates import without_forbidden
from gpusage.predictors.intervals import speedup
from gpusage.store.annotation import RecordNumbers
from gpusage.store.opening import open_store
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.managers import GpuCatalogue
from gpusage_hooks.types import Cluster, Code, Decision, GpuNeed, GpuPool, Job, ModelGraph
from gpusage_yarn.cluster.queues import find_queue
from gpusage_yarn.cluster.snapshot import MASTER, ClusterSnapshot, ContainerSize, build_cluster
from gpusage_yarn.share_plan import WHOLE_GPU, Plan
from gpusage_yarn.submission.request import FALLBACK_AFTER_S, describe_plan, plan_labels


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSubmission:
    """A verdict, its request in the plan's own words, and the plan that carries it out.

    The plan is for a whole GPU where the verdict is held back.
    """

    outcome: Outcome
    plan: Plan

    def line(self) -> str:
        """Return the line that the user sees."""
        decision, after = self.outcome.decision, self.outcome.rendered.after
        if decision.code is Code.DECLINE:
            return f"{after} | {'; '.join(decision.reasons)}"
        if decision.code is Code.REWRITE:
            apart = self.plan.apart and self.plan.containers > 1  # as NCCL requires
            return self.outcome.line + (" | its containers never share a GPU with each other" if apart else "")
        return replace(self.outcome, rendered=replace(self.outcome.rendered, before=f"{after}: a whole GPU")).line


def plan_submission(
    advisor: Advisor,
    job: Job,
    graph: ModelGraph | None,
    snapshot: ClusterSnapshot,
    size: ContainerSize,
) -> PlannedSubmission:
    """Return the plan of a submission; *snapshot* shows which generations have room for a container of *size* now."""
    queue = find_queue(snapshot.queues, job.submission.fields.get("queue", ""))
    cluster = build_cluster(snapshot, advisor.catalogue)
    pools = tuple(pool for pool in cluster.pools if pool.mps_per_gpu)
    if queue is None:
        # A queue that YARN may make when it is named reaches what YARN lets it reach.
        pools = tuple(replace(pool, partitions=()) for pool in pools)
    cluster = replace(cluster, pools=pools)
    forbidden = job.model_request.workload.forbidden_gpus if job.model_request else ()
    cluster = without_forbidden(cluster, forbidden, advisor.catalogue)  # so no plan has their labels
    outcome = advisor.advise(job, cluster, lambda _job, _model_request: graph)

    pools = oldest_sufficient_first(advisor, job, graph, cluster).within(job.request.partitions).pools
    catalogue = advisor.catalogue
    base_plan = _plan_for(outcome.decision, pools, snapshot, size, catalogue)

    # The user reads the labels in the plan's own order, which puts those with room first.
    fields = outcome.rendered.fields and {**outcome.rendered.fields, "set.labels": ",".join(base_plan.labels)}
    after = describe_plan(base_plan.share, base_plan.labels)
    outcome = replace(outcome, rendered=replace(outcome.rendered, after=after, fields=fields))
    if outcome.held_back_reason:
        whole = replace(outcome.decision, request=job.request)
        return PlannedSubmission(outcome=outcome, plan=_plan_for(whole, pools, snapshot, size, catalogue))

    plan = replace(base_plan, priority=int(fields.get("set.priority", "0")), apart="set.apart" in fields)
    return PlannedSubmission(outcome=outcome, plan=plan)


def _plan_for(
    decision: Decision,
    pools: tuple[GpuPool, ...],
    snapshot: ClusterSnapshot,
    size: ContainerSize,
    catalogue: GpuCatalogue,
) -> Plan:
    """Return the plan that carries out *decision*, first where there is room for a container of *size*."""
    size = replace(size, share=decision.request.mps_thread_percent or WHOLE_GPU)
    labels = tuple(sorted(plan_labels(decision, pools, catalogue), key=lambda label: not snapshot.fits(label, size)))

    return Plan(
        share=size.share,
        labels=labels,
        fallback_after_s=FALLBACK_AFTER_S if len(labels) > 1 else 0,
        memory_mib=size.memory_mib,
        vcores=size.vcores,
    )


def oldest_sufficient_first(advisor: Advisor, job: Job, graph: ModelGraph | None, cluster: Cluster) -> Cluster:
    """Return *cluster* with the oldest GPU types first that are not surely slower than the fastest.

    Types that are too small for the job are left out, whatever was decided. Where nothing is predicted the order
    stays as it is: an old GPU may be too small for a job that nobody knows.
    """
    known = {pool.site_type: advisor.catalogue.find(pool.gpu) for pool in cluster.pools if pool.gpu}
    needs: dict[str, GpuNeed] = {}
    if graph and job.model_request:
        with suppress(GpuUsageError):
            run = request_with_model_settings(job.model_request, graph).workload
            predicted = advisor.predict(graph, run, tuple(known.values()))
            needs = dict(zip(known, predicted, strict=True))
    fitting = [need for need in needs.values() if need.fits]
    if not fitting:
        return cluster

    # An old GPU that is about as fast leaves the new ones to jobs that gain from them.
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


def master_label(snapshot: ClusterSnapshot, queue: str, labels: tuple[str, ...]) -> str:
    """Return the label of an application's master: nodes without a label where there are some, else where it has room.

    Args:
        snapshot: What there is.
        queue: The one that was named; where none was, any may be the one, so each must reach the nodes without a label.
        labels: The plan's.
    """
    named = find_queue(snapshot.queues, queue) if queue else None

    # YARN copies an application's label to its master, so a master without one needs a queue that reaches such nodes.
    queues = (named,) if named else snapshot.queues
    reached = ["", *labels] if all(each.is_accessible("") for each in queues) else labels

    # Without room anywhere it waits where a node is large enough for it.
    totals = {label: [node.total for node in snapshot.nodes_with_label(label)] for label in reached}
    there = [
        label
        for label in reached
        if any(total.memory_mib >= MASTER.memory_mib and total.vcores >= MASTER.vcores for total in totals[label])
    ]
    free = [
        label
        for label in there
        if snapshot.fits(label, MASTER) and not any(label in each.am_limit_reached for each in queues)
    ]
    return [*free, *there, *labels, ""][0]


def record_decision(planned: PlannedSubmission, advisor: Advisor, store_url: str) -> tuple[str, str]:
    """Let plugins and the store know of a decision; return its number there, or ``""`` and why it could not be kept."""
    now_s, outcome = time.time(), planned.outcome
    number = RecordNumbers().next_number(now_s)
    decided = outcome.record(origin=outcome.submission.origin, number=number, decided_at_s=now_s)
    with suppress(Exception):  # a plugin that only listens may fail in any way
        advisor.hooks.decision_made(decided)

    try:
        with closing(open_store(store_url)) as store:
            store.record(decided)
    except (GpuUsageError, OSError) as error:
        return "", str(error)
    return number, ""
