"""Checks of what nodes do and offer, and of how many masters queues run on them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpusage.cli.findings import Finding, failed, passed, skipped, warned
from gpusage_yarn.cluster import View
from gpusage_yarn.evidence import Evidence
from gpusage_yarn.plan import WHOLE_GPU
from gpusage_yarn.queues import MASTER_MIB, Queue
from gpusage_yarn.settings import YarnSettings

_RESOURCE = "yarn.nodemanager.resource-type"


def listener(evidence: Evidence) -> Finding:
    """Tell nodes that bind no container to a GPU, and why."""
    name = "node listener"
    if not evidence.nodes:
        return failed(
            name, "no node offers shares", "gpusage yarn install --role node --gpus N --yes on each, restart it"
        )
    silent = [node for node in evidence.nodes if node.trouble]
    lacking = [node for node in evidence.nodes if not node.binds and not node.trouble]
    if lacking:
        observation = (
            f"it does not run on {len(lacking)} of {len(evidence.nodes)} nodes: {_some(node.name for node in lacking)}"
        )
        trouble = next((line for node in lacking for line in node.troubles), "")
        if trouble:
            return failed(name, f"{observation}; {trouble}", "mend what it says, then restart the NodeManager")
        return failed(name, observation, "gpusage yarn install --role node --yes there, then restart the NodeManager")
    if silent:
        observation = f"{_some(node.name for node in silent)} did not tell: {silent[0].trouble}"
        return warned(name, observation, "see whether this host reaches their web addresses, and may read /jmx there")
    versions = sorted(
        {node.version for node in evidence.nodes} | ({evidence.manager.version} if evidence.manager else set())
    )
    if len(versions) > 1:
        return warned(name, f"versions {', '.join(versions)} run side by side", "put the same jar on every host")
    return passed(name, f"runs on {len(evidence.nodes)} nodes, version {versions[0]}")


def shares(evidence: Evidence) -> Finding:
    """Tell nodes that offer other GPUs than they share out."""
    name, offered = "shares of nodes", {node.name: node for node in evidence.view.nodes} if evidence.view else {}
    both = [node.name for node in offered.values() if node.total.share and node.gpus]
    for node in evidence.nodes:
        share = offered[node.name].total.share if node.name in offered else 0
        if node.free and share != WHOLE_GPU * len(node.free):
            observation = f"{node.name} offers {share}, and its listener has {len(node.free)} GPUs"
            resource = evidence.own.configuration.of_manager(YarnSettings).share_resource
            todo = (
                f"set {_RESOURCE}.{resource} to {WHOLE_GPU * len(node.free)}, "
                "or gpusage.node.gpus to all GPUs that are shared; then restart the NodeManager"
            )
            return failed(name, observation, todo)
    if both:
        observation = f"{_some(both)} offer yarn.io/gpu as well: the same GPU may be given out twice"
        todo = "let gpusage.node.gpus name the shared GPUs, and yarn.nodemanager.resource-plugins.gpu others"
        return warned(name, observation, todo)
    return passed(name, f"{sum(node.total.share for node in offered.values()) // WHOLE_GPU} GPUs, each counted once")


def troubles(evidence: Evidence) -> Finding:
    """Tell what daemons say of themselves: MPS, the journal, and exceptions of ours that were kept from them."""
    name, daemons = "troubles", [*([evidence.manager] if evidence.manager else []), *evidence.nodes]
    sentences = [f"{daemon.name}: {line}" for daemon in daemons for line in daemon.troubles]
    if sentences:
        return failed(name, "; ".join(sentences[:5]), "mend what it says, then restart that daemon")
    failing = [f"{daemon.name}: {daemon.failures}" for daemon in daemons if daemon.failures]
    if failing:
        observation = f"exceptions of ours were kept from daemons since they started: {_some(failing)}"
        return warned(name, observation, "look for gpusage in their logs")
    return passed(name, "no daemon tells of any")


def sampler(evidence: Evidence) -> Finding:
    """Check what tells what containers really did."""
    name, command = "sampler", evidence.sampler
    if command is None:
        return skipped(name, "this host's configuration is of no node")
    program = command.partition(" ")[0]
    if os.access(program, os.X_OK):
        return passed(name, command)
    observation = f"gpusage.node.usage-command is {command or '(none)'}: nobody knows what containers here really did"
    todo = "install gpusage on the node, gpusage yarn install --role node --yes there, then restart the NodeManager"
    return warned(name, observation, todo)


def masters(evidence: Evidence) -> Finding:
    """Tell queues in which fewer masters run at once than the queue has GPUs."""
    name, view = "masters", evidence.view
    if view is None:
        return warned(name, "they are not known", "mend the ResourceManager first")
    least = int(evidence.settings.get("yarn.scheduler.minimum-allocation-mb", "1024"))
    counts_by_queue = []
    for queue in view.queues:
        labels = sorted({node.label for node in view.nodes if queue.opens(node.label)})
        counts = {label: masters_at_once(view, queue, label, max(MASTER_MIB, least)) for label in labels}
        gpus = sum(node.total.share for node in view.nodes if queue.opens(node.label)) // WHOLE_GPU
        if sum(counts.values()) < gpus:
            each = ", ".join(f"{count} on {label or 'nodes without a label'}" for label, count in counts.items())
            todo = (
                "raise yarn.scheduler.capacity.maximum-am-resource-percent (0.1 where it is not set), of all queues "
                "or of this one; then yarn rmadmin -refreshQueues"
            )
            return warned(name, f"{queue.path} runs few applications at once for its {gpus} GPUs: {each}", todo)
        counts_by_queue.append(f"{queue.path}: {sum(counts.values())} at once")
    return passed(name, ", ".join(counts_by_queue[:5]))


def masters_at_once(view: View, queue: Queue, label: str, memory_mib: int) -> int:
    """Return how many masters of applications *queue* is sure to run at once on nodes with *label*; at least one."""
    part = queue.capacity.get(label, 0) / 100 * queue.masters.get(label, 100) / 100
    nodes = view.of_label(label)
    memory = sum(node.total.memory_mib for node in nodes) * part / memory_mib
    return max(int(min(memory, sum(node.total.vcores for node in nodes) * part)), 1 if nodes else 0)


def _some(names: Iterable[str]) -> str:
    """Return a few of *names*."""
    known = list(names)
    return ", ".join(known[:5]) + (f" and {len(known) - 5} more" if len(known) > 5 else "")  # noqa: PLR2004 - as many
