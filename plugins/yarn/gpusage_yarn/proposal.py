"""What `gpusage yarn submit` will ask for: decided as the daemon decides, then put into a plan.

Invariants:

1. There is always a plan: where nothing is to be changed, it asks for a whole GPU, which is a share of 100.
2. A site that has set a mode other than ``enforce``, or thrown the kill switch, gets whole GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import Cluster, Code, Decision, DecisionRecord, Job, ModelGraph, Rendered
from gpusage_yarn.plan import WHOLE_GPU, Plan
from gpusage_yarn.render import FALLBACK_AFTER_S, describe_plan, plan_labels
from gpusage_yarn.request import MANAGER

if TYPE_CHECKING:
    from gpusage.advisor import Advisor
    from gpusage.configuration import Configuration
    from gpusage_yarn.cluster import View

SETTLING_S = 15.0
"""How long nodes may take to register after a ResourceManager's start: they ask for it every second or so."""
_PAUSE_S = 0.3


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

        told = explain(self.decision, self.rendered)
        if not told:
            return f"{describe_plan(None, self.plan.labels)} | {'; '.join(self.decision.reasons)}"
        return f"advice only, for {self.held_back}: {told}" if self.held_back else told


def settled_view(look: Callable[[], View], share: str, label: str) -> View:
    """Return what *look* shows; again after a while where nodes are missing, for a new ResourceManager has none yet."""
    deadline_s = time.monotonic() + SETTLING_S
    view = look()
    while _may_come(view, share, label) and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)
        view = look()
    return view


def require_ready(view: View, share: str, queue: str, label: str) -> None:
    """Refuse what this cluster cannot run, before anything is sent.

    Raises:
        RequestError: It offers no shares, has no labels, or does not have what was named.
    """
    if share not in view.resource_types:
        known = ", ".join(sorted(view.resource_types)) or "none"
        message = f"Cluster must have the resource type {share!r}; it has {known}. See: gpusage yarn doctor."
        raise RequestError(message)
    shared = {node.label for node in view.nodes if node.share}
    if not shared:
        message = f"Cluster must have nodes that offer {share!r}; none does. See: gpusage yarn doctor."
        raise RequestError(message)
    labels = sorted(shared - {""})
    if not labels:
        message = "Nodes with GPUs must have node labels, one a GPU type; none has. See: gpusage yarn doctor."
        raise RequestError(message)
    if label and label not in labels:
        message = f"GPU {label!r} must be a node label with shared GPUs; there are {', '.join(labels)}. Change --gpu."
        raise RequestError(message)
    queues = {each.name: each for each in view.queues}
    name = queue.rpartition(".")[2]
    if name and queues and name not in queues:
        message = f"Queue {queue!r} must be one of the cluster's; there are {', '.join(queues)}. Change --queue."
        raise RequestError(message)
    reached = queues.get(name or "default")
    if reached and not any(reached.opens(each) for each in ([label] if label else labels)):
        message = (
            f"Queue {reached.name!r} must be open to the label {label or ' or '.join(labels)}; it is not. "
            "Change --queue, or see: gpusage yarn doctor."
        )
        raise RequestError(message)


def _may_come(view: View, share: str, label: str) -> bool:
    """Tell whether nodes that are known of by their labels or their resource type have not registered yet."""
    there = {node.label for node in view.nodes}
    return share in view.resource_types and (not there or (label in view.labels and label not in there))


def propose(
    advisor: Advisor, job: Job, graph: ModelGraph | None, cluster: Cluster, view: View, configuration: Configuration
) -> Proposal:
    """Return what to ask for; *view* tells which generations have room at once."""
    from gpusage.service.kill_switch import kill_reason  # noqa: PLC0415 - start-up time of those who only list commands

    cluster = replace(cluster, pools=tuple(pool for pool in cluster.pools if pool.mps_per_gpu))
    decision = advisor.decide(job, graph, cluster)
    decision, rendered = advisor.render(job, decision, cluster)
    mode = configuration.mode if "mode" in configuration.origins else "enforce"
    held_back = ""
    if decision.code is Code.REWRITE:
        held_back = kill_reason(configuration.kill_switch) or (
            "" if mode == "enforce" else f"the site's mode is {mode}"
        )
    carried = replace(decision, request=job.request) if held_back else decision
    percent = carried.request.mps_thread_percent
    labels = plan_labels(carried, cluster.within(job.request.partitions).pools)
    labels = tuple(sorted(labels, key=lambda label: view.free_share(label) < (percent or WHOLE_GPU)))
    cap_mib = 0 if held_back else int(rendered.fields.get("set.memory_cap_mib", "0"))
    plan = Plan(
        share=percent or WHOLE_GPU,
        memory_cap_mib=cap_mib,
        labels=labels,
        fallback_after_s=FALLBACK_AFTER_S if len(labels) > 1 else 0,
    )
    if decision.code is Code.REWRITE and not held_back:
        rendered = replace(rendered, after=describe_plan(percent, labels))
    return Proposal(job=job, decision=decision, rendered=rendered, plan=plan, mode=mode, held_back=held_back)


def record(advisor: Advisor, proposal: Proposal, configuration: Configuration) -> str:
    """Let plugins and the store know of a decision; return why the store could not keep it, else ``""``."""
    from gpusage.store.opening import open_store  # noqa: PLC0415 - as above

    wish = proposal.job.model_request
    made = DecisionRecord(
        decided_at_s=time.time(),
        manager=MANAGER,
        origin=proposal.job.submission.origin,
        mode=proposal.mode,
        decision=proposal.decision,
        rendered=proposal.rendered,
        model=wish.model if wish else None,
        workload=wish.workload if wish else None,
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
