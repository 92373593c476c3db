"""What a cluster must have for a submission; what it cannot run is refused before anything is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from gpusage_hooks.errors import RequestError
from gpusage_yarn.cluster import ANY, Size, View
from gpusage_yarn.jmx import JmxReport, unbound
from gpusage_yarn.queues import Queue, find_queue

SETTLING_S = 15.0
"""How long nodes may take to register after a ResourceManager's start: they ask for it every second or so."""
_PAUSE_S = 0.3
_DOCTOR = "See: gpusage yarn doctor."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Where an application is to run, and what each of its containers takes beside its share.

    Attributes:
        share: The resource type that counts hundredths of GPUs.
        queue: ``""`` leaves it to the site's rules.
        label: The only one that is allowed, ``""`` for any.
        size: Of one container; its share is not known yet.
    """

    share: str
    queue: str = ""
    label: str = ""
    size: Size = ANY


def settled_view(look: Callable[[], View], share: str, label: str) -> View:
    """Return what *look* shows; again after a while where nodes are missing, for a new ResourceManager has none yet."""
    deadline_s = time.monotonic() + SETTLING_S
    view = look()
    while _may_come(view, share, label) and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)
        view = look()
    return view


def _may_come(view: View, share: str, label: str) -> bool:
    """Tell whether nodes that are known of by their labels or their resource type have not registered yet."""
    there = {node.label for node in view.nodes}
    return share in view.resource_types and (not there or (label in view.labels and label not in there))


def require_ready(view: View, wanted: Wanted) -> tuple[str, ...]:
    """Return the labels on which an application may run; refuse what this cluster cannot run.

    Raises:
        RequestError: It offers no shares, has no labels, or does not have what was named.
    """
    labels = _require_labels(view, wanted)
    queue = _require_queue(view, wanted.queue)
    if queue:
        reached = [label for label in labels if queue.opens(label)]
        if not reached:
            rule = f"be open to the label {' or '.join(labels)}"
            _refuse(f"Queue {queue.path!r}", rule, "it is not", "Change --queue, or see: gpusage yarn doctor.")
        labels = tuple(reached)
    _require_size(view, labels, wanted.size)
    return labels


def require_listeners(
    view: View, labels: Iterable[str], reports: Mapping[str, JmxReport]
) -> tuple[View, list[str]]:  # fmt: skip
    """Return *view* without the labels on which nothing binds containers to GPUs, and a sentence on each doubt.

    Raises:
        RequestError: That is so on each of *labels*.
    """
    notes, lacking, silent = [], [], []
    for label in labels:
        names = {node.name for node in view.of_label(label)}
        asked = {name: daemon for name, daemon in reports.items() if name in names and not daemon.trouble}
        bare = unbound(asked)
        if not asked:
            silent.append(label)
        elif len(bare) == len(asked):
            lacking.append(label)
        elif bare:
            notes.append(f"containers on {', '.join(bare)} ({label}) are bound to no GPU; tell your admin")
    if lacking and set(lacking) == set(labels):
        rule = "run gpusage's listener, which binds containers to GPUs"
        _refuse(f"Nodes with the label {' or '.join(lacking)}", rule, "those that were asked do not", _DOCTOR)
    if silent:
        why = next((f" ({daemon.trouble})" for daemon in reports.values() if daemon.trouble), "")
        notes.append(f"no node with the label {' or '.join(silent)} has told whether it binds containers to GPUs{why}")
    notes += [f"{label} is left out, for nothing binds containers to GPUs there" for label in lacking]
    return replace(view, nodes=tuple(node for node in view.nodes if node.label not in lacking)), notes


def _require_labels(view: View, wanted: Wanted) -> tuple[str, ...]:
    if wanted.share not in view.resource_types:
        known = ", ".join(sorted(view.resource_types)) or "none"
        _refuse("Cluster", f"have the resource type {wanted.share!r}", f"it has {known}", _DOCTOR)
    shared = {node.label for node in view.nodes if node.total.share}
    if not shared:
        _refuse("Cluster", f"have nodes that offer {wanted.share!r}", "none does", _DOCTOR)
    labels = sorted(shared - {""})
    if not labels:
        _refuse("Nodes with GPUs", "have node labels, one per GPU type", "none has", _DOCTOR)
    if wanted.label and wanted.label not in labels:
        observation = f"there are {', '.join(labels)}"
        _refuse(f"GPU {wanted.label!r}", "be a node label with shared GPUs", observation, "Change --gpu.")
    return (wanted.label,) if wanted.label else tuple(labels)


def _require_queue(view: View, name: str) -> Queue | None:
    """Return the queue that is meant; ``None`` where only YARN can tell, which may make it when it is named."""
    queue = find_queue(view.queues, name)
    if name and queue is None and view.queues and not view.makes_queues:
        known = ", ".join(each.path for each in view.queues)
        _refuse(f"Queue {name!r}", "be one of the cluster's", f"there are {known}", "Change --queue.")
    return queue


def _require_size(view: View, labels: tuple[str, ...], size: Size) -> None:
    """Refuse a container that no node could ever hold."""
    nodes = [node for label in labels for node in view.of_label(label) if node.usable]
    for asked, name, option, unit in (
        (size.memory_mib, "memory-mb", "--memory-mib", " MiB"),
        (size.vcores, "vcores", "--vcores", " vcores"),
    ):
        here = max((node.total.memory_mib if unit == " MiB" else node.total.vcores for node in nodes), default=asked)
        most = min(here, view.resource_types.get(name, asked))
        if asked > most:
            rule = f"be at most {most}{unit}, the most that one has on {' or '.join(labels)}"
            _refuse(f"Container's {option}", rule, f"got {asked}", f"Lower {option}.")


def _refuse(subject: str, rule: str, observation: str, cure: str) -> NoReturn:
    message = f"{subject} must {rule}; {observation}. {cure}"
    raise RequestError(message)
