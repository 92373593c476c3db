"""Slurm's nodes as power saving sees them: on, off, on their way, or not to be touched."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gpusage_slurm import scontrol
from gpusage_slurm.cluster.hostlist import expand_hostlist
from gpusage_slurm.cluster.nodes import node_states, split_words

Power = Literal["on", "off", "going down", "coming up"]
_BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}
_RESERVED = {"RESERVED", "MAINT"}
_NOT_IN_USE = ("DRAIN", "DOWN", "FAIL", "FUTURE", "INVAL", "REBOOT", "UNKNOWN", "ERROR")
_SILENT = ("NO_RESPOND", "NOT_RESPOND")
"""Of a node that is on; one that is off answers nobody."""
_POWERS: Mapping[str, Power] = {
    "POWERING_DOWN": "going down",
    "POWER_DOWN": "going down",
    "POWERING_UP": "coming up",
    "POWER_UP": "coming up",
    "POWERED_DOWN": "off",
}
_COLUMNS = "%n %Y"
"""The nodes that a waiting job asks for by name, and those that the scheduler has chosen for it."""
_NONE = "(null)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node.

    Attributes:
        untouchable_reason: Why nobody may suspend or resume it, a clause; empty where one may.
        keep_on_reason: Why it may not be suspended, a clause; empty where it may.
    """

    name: str
    power: Power
    untouchable_reason: str = ""
    keep_on_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldNodes:
    """Names of nodes, and of partitions, that are held for somebody or kept on by the site.

    Attributes:
        suspended: Where jobs are suspended: Slurm says that these nodes are idle.
        expected: Where jobs that wait are to start.
    """

    reserved: Collection[str] = ()
    suspended: Collection[str] = ()
    expected: Collection[str] = ()
    excluded: Collection[str] = ()
    excluded_partitions: Collection[str] = ()


def read_nodes(settings: Mapping[str, str]) -> dict[str, Node]:
    """Return each node of this host's Slurm by its name, given slurmctld's *settings*.

    Raises:
        RequestError: slurmctld does not answer.
    """
    held = HeldNodes(
        reserved=_names(each.get("Nodes", "") for each in scontrol.reservations()),
        suspended=_names(_nodes_of_jobs("S", "%N")),
        expected=_names(_nodes_of_jobs("PD", _COLUMNS)),
        excluded=_names([settings.get("suspendexcnodes", "")]),
        excluded_partitions=settings.get("suspendexcparts", "").split(","),
    )
    return {node.name: node for node in (parse_node(each, held) for each in scontrol.nodes())}


def parse_node(node: Mapping[str, Any], held: HeldNodes) -> Node:
    """Return a node from Slurm's JSON."""
    name, states, partitions = str(node.get("name", "")), node_states(node), split_words(node.get("partitions"))
    power: Power = next((power for state, power in _POWERS.items() if state in states), "on")
    if int(node.get("alloc_cpus") or 0):
        states.add("ALLOCATED")
    return Node(
        name=name,
        power=power,
        untouchable_reason=next(_untouchable_reasons(name, states, power, held), ""),
        keep_on_reason=next(_keep_on_reasons(name, partitions, states, held), ""),
    )


def _untouchable_reasons(name: str, states: set[str], power: Power, held: HeldNodes) -> Iterator[str]:
    bad = (*_NOT_IN_USE, *_SILENT) if power == "on" else _NOT_IN_USE
    yield from (f"its state is {state}" for state in sorted(states) if state.startswith(bad))
    if states & _BUSY:
        yield "a job runs there"
    if name in held.suspended:
        yield "a job is suspended there"
    if states & _RESERVED or name in held.reserved:
        yield "it is reserved"


def _keep_on_reasons(name: str, partitions: Iterable[str], states: set[str], held: HeldNodes) -> Iterator[str]:
    if "PLANNED" in states or name in held.expected:
        yield "a job that waits is to start there"
    if name in held.excluded:
        yield "SuspendExcNodes keeps it on"
    if any(partition in held.excluded_partitions for partition in partitions):
        yield "SuspendExcParts keeps it on"


def _nodes_of_jobs(state: str, columns: str) -> list[str]:
    return scontrol.run("squeue", "--all", "--noheader", f"--states={state}", f"--format={columns}").split()


def _names(texts: Iterable[str]) -> set[str]:
    """Return the names that *texts* stand for; what Slurm adds for a count, ``gpu[1-9]:2``, is left out."""
    return {name for text in texts for name in expand_hostlist(re.sub(r":\d+", "", text.replace(_NONE, "")))}
