"""The demands of a submission on a cluster; a submission that cannot run is refused before anything is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster.jmx import JmxReport, nodes_without_listener
from gpusage_yarn.cluster.queues import Queue, find_queue
from gpusage_yarn.cluster.snapshot import ANY_SIZE, ClusterSnapshot, ContainerSize
from gpusage_yarn.share_plan import WHOLE_GPU

REGISTRATION_TIMEOUT_S = 15.0
"""How long nodes may take to register after a ResourceManager's start: they ask for it every second or so."""
_PAUSE_S = 0.3
_DOCTOR = "See: gpusage yarn doctor."


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Where an application is to run, and the size of each of its containers beside its share.

    Attributes:
        share: The resource type that counts hundredths of GPUs.
        queue: ``""`` leaves it to the site's rules.
        label: The only one that is allowed, ``""`` for any.
        size: Of one container; its share is not known yet.
    """

    share: str
    queue: str = ""
    label: str = ""
    size: ContainerSize = ANY_SIZE


def wait_for_nodes(read: Callable[[], ClusterSnapshot], share: str, label: str) -> ClusterSnapshot:
    """Return the result of *read*; again after a while if nodes are missing: a new ResourceManager has none yet."""
    deadline_s = time.monotonic() + REGISTRATION_TIMEOUT_S
    while True:
        snapshot = read()

        # Nodes that have not registered yet are known of by their labels, or by their resource type.
        there = {node.label for node in snapshot.nodes}
        is_missing = not there or (label in snapshot.labels and label not in there)
        if share not in snapshot.resource_types or not is_missing or time.monotonic() >= deadline_s:
            return snapshot
        time.sleep(_PAUSE_S)


def require_feasible(snapshot: ClusterSnapshot, requirements: Requirements) -> tuple[str, ...]:
    """Return the labels on which an application may run; refuse an application that this cluster cannot run.

    Raises:
        RequestError: It offers no shares, has no labels, or does not have what was named.
    """
    labels = _require_labels(snapshot, requirements)

    # YARN may make a queue when it is named, so one that is not there is refused only where it makes none.
    name, queue = requirements.queue, find_queue(snapshot.queues, requirements.queue)
    if name and queue is None and snapshot.queues and not snapshot.creates_queues:
        known = ", ".join(each.path for each in snapshot.queues)
        _refuse(f"Queue {name!r}", "be one of the cluster's", f"there are {known}", "Change --queue.")
    if queue:
        labels = _require_shares(queue, labels, requirements.share)

    # No node could ever hold a container that is larger than it.
    size = requirements.size
    nodes = [node for label in labels for node in snapshot.nodes_with_label(label) if node.usable]
    for amount, type_name, option, unit in (
        (size.memory_mib, "memory-mb", "--memory-mib", " MiB"),
        (size.vcores, "vcores", "--vcores", " vcores"),
    ):
        here = max((node.total.memory_mib if unit == " MiB" else node.total.vcores for node in nodes), default=amount)
        most = min(here, snapshot.resource_types.get(type_name, amount))
        if amount > most:
            rule = f"be at most {most}{unit}, the most that one has on {' or '.join(labels)}"
            _refuse(f"Container's {option}", rule, f"got {amount}", f"Lower {option}.")
    return labels


def _require_labels(snapshot: ClusterSnapshot, requirements: Requirements) -> tuple[str, ...]:
    """Return the labels that offer shares, or the label that was named."""
    if requirements.share not in snapshot.resource_types:
        known = ", ".join(sorted(snapshot.resource_types)) or "none"
        _refuse("Cluster", f"have the resource type {requirements.share!r}", f"it has {known}", _DOCTOR)
    shared = {node.label for node in snapshot.nodes if node.total.share}
    if not shared:
        _refuse("Cluster", f"have nodes that offer {requirements.share!r}", "none does", _DOCTOR)

    labels = sorted(shared - {""})
    if not labels:
        _refuse("Nodes with GPUs", "have node labels, one per GPU type, or one gpu_type in [yarn]", "none has", _DOCTOR)
    if requirements.label and requirements.label not in labels:
        observation = f"there are {', '.join(labels)}"
        _refuse(f"GPU {requirements.label!r}", "be a node label with shared GPUs", observation, "Change --gpu.")
    return (requirements.label,) if requirements.label else tuple(labels)


def _require_shares(queue: Queue, labels: tuple[str, ...], share: str) -> tuple[str, ...]:
    """Return the *labels* of which *queue* has shares; YARN takes an application elsewhere and never starts it."""
    reached = [label for label in labels if queue.is_accessible(label)]
    if not reached:
        rule = f"be open to the label {' or '.join(labels)}"
        _refuse(f"Queue {queue.path!r}", rule, "it is not", "Change --queue, or see: gpusage yarn doctor.")

    sharing = tuple(label for label in reached if queue.has_shares(label))
    if not sharing:
        rule = (
            f"have {share} among its absolute resources on {' or '.join(reached)}, or the application would wait for "
            "ever"
        )
        lines = [line for label in reached for line in queue.missing.get(label, ())]
        cure = f"Change --queue; your admin can write {'; '.join(lines[:2])}."
        _refuse(f"Queue {queue.path!r}", rule, "it has none", cure)
    return sharing


def exclude_unbound_nodes(
    snapshot: ClusterSnapshot, labels: Iterable[str], reports: Mapping[str, JmxReport]
) -> tuple[ClusterSnapshot, list[str]]:  # fmt: skip
    """Return *snapshot* without the labels on which nothing binds containers to GPUs, and a sentence on each doubt.

    Raises:
        RequestError: That is so on each of *labels*.
    """
    # A label is left out only if every node of it that answered binds nothing; silence proves nothing.
    notes, lacking, silent = [], [], []
    for label in labels:
        names = {node.name for node in snapshot.nodes_with_label(label)}
        answers = {name: daemon for name, daemon in reports.items() if name in names and not daemon.trouble}
        bare = nodes_without_listener(answers)
        if not answers:
            silent.append(label)
        elif len(bare) == len(answers):
            lacking.append(label)
        elif bare:
            notes.append(f"containers on {', '.join(bare)} ({label}) are bound to no GPU; tell your admin")

    if lacking and set(lacking) == set(labels):
        rule = "run gpusage's listener, which binds containers to GPUs"
        _refuse(f"Nodes with the label {' or '.join(lacking)}", rule, "those that were asked do not", _DOCTOR)
    if silent:
        why = next((f" ({daemon.trouble})" for daemon in reports.values() if daemon.trouble), "")
        notes.append(f"no node with the label {' or '.join(silent)} reports whether it binds containers to GPUs{why}")
    notes += [f"{label} is left out, because nothing binds containers to GPUs there" for label in lacking]
    return replace(snapshot, nodes=tuple(node for node in snapshot.nodes if node.label not in lacking)), notes


def require_queue_limit(snapshot: ClusterSnapshot, requirements: Requirements, share: int) -> None:
    """Refuse a *share* that is more than the queue allows a container, which YARN would refuse later.

    Raises:
        RequestError: It is more.
    """
    queue = find_queue(snapshot.queues, requirements.queue)
    most = queue.largest.get(requirements.share, share) if queue else share
    if queue and share > most:
        observation = f"this job needs {share}{' (a whole GPU)' if share == WHOLE_GPU else ''}"
        rule = f"be at most {most}, the maximum allocation of queue {queue.path!r}"
        _refuse(f"Container's {requirements.share}", rule, observation, "Change --queue.")


def _refuse(subject: str, rule: str, observation: str, cure: str) -> NoReturn:
    message = f"{subject} must {rule}; {observation}. {cure}"
    raise RequestError(message)
