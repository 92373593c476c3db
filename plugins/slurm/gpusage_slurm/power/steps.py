"""What a plan does with each of its nodes now; a pure decision.

Invariants:

1. No node is suspended on which a job runs or is to start, nor one that is drained, down or reserved.
2. Once the steps are done, the same plan at the same moment has nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gpusage.cli import figures
from gpusage_hooks.errors import RequestError
from gpusage_slurm.power.nodes import Node, Power
from gpusage_slurm.power.planned import Times

SHOWN = 5
"""Names of nodes in a sentence."""
Action = Literal["suspend", "resume", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What becomes of a node.

    Attributes:
        why: A clause.
    """

    node: str
    power: Power
    action: Action
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """How long Slurm waits until a node is off (SuspendTimeout), and until it is on (ResumeTimeout)."""

    suspend_s: float
    resume_s: float


def steps(times: Times, nodes: Mapping[str, Node], delays: Delays, now_s: float) -> tuple[Step, ...]:
    """Return a step for each node of the plan, in the order of their names.

    Raises:
        RequestError: Slurm does not know one of them.
    """
    unknown = sorted(times.on_s.keys() - nodes.keys())
    if unknown:
        known = ", ".join(sorted(nodes)[:SHOWN]) + (", ..." if len(nodes) > SHOWN else "")
        message = (
            f"Node {unknown[0]!r} of the plan must be one of Slurm's nodes; got {known or 'none'}. "
            "Write 'names' into the cluster file, and plan anew."
        )
        raise RequestError(message)
    return tuple(_step(nodes[name], times, delays, now_s) for name in sorted(times.on_s))


def _step(node: Node, times: Times, delays: Delays, now_s: float) -> Step:
    if times.is_on(node.name, now_s, delays.resume_s):
        action, why = _wanted(node)
    else:
        action, why = _unwanted(node, times.next_start_s(node.name, now_s) - now_s, delays)
    return Step(node=node.name, power=node.power, action=action, why=why)


def _wanted(node: Node) -> tuple[Action, str]:
    if node.power == "on":
        return "leave", "as planned"
    if node.kept or node.power != "off":
        return "leave", node.kept or f"it is {node.power}"
    return "resume", "the plan has it on"


def _unwanted(node: Node, next_in_s: float, delays: Delays) -> tuple[Action, str]:
    if node.power in ("off", "going down"):
        return "leave", "as planned"
    obstacle = next(_obstacles(node, next_in_s, delays), "")
    if obstacle:
        return "leave", obstacle
    if next_in_s == float("inf"):
        return "suspend", "the plan does not use it any more"
    return "suspend", f"the plan needs it in {figures.duration(next_in_s)}"


def _obstacles(node: Node, next_in_s: float, delays: Delays) -> Iterator[str]:
    if node.kept or node.kept_on:
        yield node.kept or node.kept_on
    if node.power == "coming up":
        yield "it is coming up"
    if next_in_s <= delays.suspend_s + delays.resume_s:
        yield f"the plan needs it in {figures.duration(next_in_s)}, before it could be off and on again"
