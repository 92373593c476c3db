"""What `gpusage yarn submit` will ask for: decided as the daemon decides, then put into a plan.

Invariants:

1. There is always a plan: where nothing is to be changed, it asks for a whole GPU, which is a share of 100.
2. A site that has set a mode other than ``enforce``, or thrown the kill switch, gets whole GPUs.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import Cluster, Code, Decision, DecisionRecord, GpuNeed, GpuPool, Job, ModelGraph, Rendered
from gpusage_yarn.cluster import MASTER, Size, View, cluster_of
from gpusage_yarn.plan import WHOLE_GPU, Plan
from gpusage_yarn.queues import find_queue
from gpusage_yarn.render import FALLBACK_AFTER_S, describe_plan, plan_labels
from gpusage_yarn.request import MANAGER

if TYPE_CHECKING:
    from gpusage.advisor import Advisor
    from gpusage.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A decision, and the plan that carries it out.

    Attributes:
        held_back: Why the plan is for a whole GPU although the decision is another; ``""`` where it is not.
    """

    job: Job
    decision: Decision
    rendered: Rendered
    plan: Plan
    mode: str
    held_back: str = ""

    def line(self) -> str:
        """Return the one line that the user sees."""
        from gpusage.advice import explain  # noqa: PLC0415 - only where somebody reads it

        wish, after = self.job.model_request, self.rendered.after
        if self.decision.code is Code.DECLINE:
            return f"{after} | {'; '.join(self.decision.reasons)}"
        kept = self.decision.code is Code.KEEP
        rendered = replace(self.rendered, before=f"{after}: a whole GPU") if kept else self.rendered
        told = explain(self.decision, rendered, wish.assumed if wish else ())
        return f"advice only, for {self.held_back}: {told}" if self.held_back else told


def propose(
    advisor: Advisor, job: Job, graph: ModelGraph | None, view: View, configuration: Configuration, size: Size
) -> Proposal:
    """Return what to ask for; *view* tells which generations have room for a container of *size* at once."""
    from gpusage.service.kill_switch import kill_reason  # noqa: PLC0415 - start-up time of those who only list commands

    queue = find_queue(view.queues, job.submission.fields.get("queue", ""))
    cluster = _usable(cluster_of(view, advisor.catalogue), known=queue is not None)
    decision = advisor.decide(job, graph, cluster)
    cluster = modest_first(advisor, job, graph, cluster)
    decision, rendered = advisor.render(job, decision, cluster)
    mode = configuration.mode if "mode" in configuration.origins else "enforce"
    held_back = ""
    if decision.code is Code.REWRITE:
        held_back = kill_reason(configuration.kill_switch) or (
            "" if mode == "enforce" else f"the site's mode is {mode}"
        )
    carried = replace(decision, request=job.request) if held_back else decision
    percent = carried.request.mps_thread_percent
    size = replace(size, share=percent or WHOLE_GPU)
    labels = plan_labels(carried, cluster.within(job.request.partitions).pools)
    labels = tuple(sorted(labels, key=lambda label: not view.fits(label, size)))
    plan = Plan(
        share=size.share,
        memory_cap_mib=0 if held_back else int(rendered.fields.get("set.memory_cap_mib", "0")),
        labels=labels,
        fallback_after_s=FALLBACK_AFTER_S if len(labels) > 1 else 0,
        memory_mib=size.memory_mib,
        vcores=size.vcores,
    )
    if not held_back:
        rendered = replace(rendered, after=describe_plan(plan.share, labels))
    return Proposal(job=job, decision=decision, rendered=rendered, plan=plan, mode=mode, held_back=held_back)


def modest_first(advisor: Advisor, job: Job, graph: ModelGraph | None, cluster: Cluster) -> Cluster:
    """Return *cluster* with the oldest GPU types first that are not surely slower than the fastest.

    Where nothing is predicted the order stays as it is: an old GPU may be too small for a job that nobody knows.
    """
    from gpusage.predictors.speedups import speedup  # noqa: PLC0415 - start-up time of those who only list commands

    known = {pool.site_type: advisor.catalogue.find(pool.gpu) for pool in cluster.pools if pool.gpu}
    needs: dict[str, GpuNeed] = {}
    if graph and job.model_request:
        with suppress(GpuUsageError):
            predicted = advisor.predict(graph, job.model_request.workload, tuple(known.values()))
            needs = dict(zip(known, predicted, strict=True))
    fitting = [need for need in needs.values() if need.fits]
    if not fitting:
        return cluster
    fastest = min(fitting, key=lambda need: need.step_time_s.value)

    def rank(pool: GpuPool) -> tuple[bool, bool, float]:
        need = needs.get(pool.site_type)
        if need is None:
            return True, True, math.inf
        slower = need != fastest and speedup(fastest, need).low >= advisor.rules.generation.minimum_speedup
        return not need.fits, slower, need.step_time_s.value if slower else known[pool.site_type].launch_year

    return replace(cluster, pools=tuple(sorted(cluster.pools, key=rank)))


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


def record(advisor: Advisor, proposal: Proposal, configuration: Configuration) -> str:
    """Let plugins and the store know of a decision; return why the store could not keep it, else ``""``."""
    from gpusage.store.numbers import Numbers  # noqa: PLC0415 - as above
    from gpusage.store.opening import open_store  # noqa: PLC0415 - as above

    wish, now_s = proposal.job.model_request, time.time()
    made = DecisionRecord(
        decided_at_s=now_s,
        manager=MANAGER,
        origin=proposal.job.submission.origin,
        mode=proposal.mode,
        decision=proposal.decision,
        rendered=proposal.rendered,
        model=wish.model if wish else None,
        workload=wish.workload if wish else None,
        number=Numbers().take(now_s),
    )
    with suppress(Exception):  # a plugin that only listens may fail in any way
        advisor.plugins.hook.decision_made(record=made)
    try:
        store = open_store(configuration.store.url)
        try:
            store.record(made)
        finally:
            store.close()
    except (GpuUsageError, OSError) as error:
        return str(error)
    return ""
