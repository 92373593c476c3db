"""`gpusage slurm power`: a plan's steps for Slurm's power saving, shown or carried out.

Invariants:

1. No node is suspended on which a job runs or is to start, nor one that is drained, down or reserved.
2. Once the steps are done, the same plan at the same moment has nothing to do.

Tried on 22.05, 24.11 and 26.05: ``State=POWER_DOWN`` of a node on which a job runs waits for the job's end.
``POWER_DOWN_FORCE``, which would kill it, is never used.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from gpusage.boundary.operating_system import user_name
from gpusage.cli import figures, tables
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.power.nodes import Node, Power, read_nodes
from gpusage_slurm.power.plan import Schedule, read_schedule

SHOWN = 5
"""Names of nodes in a sentence."""
Action = Literal["suspend", "resume", "leave"]

STATES: Final[Mapping[Action, str]] = {"suspend": "POWER_DOWN", "resume": "POWER_UP"}
_MOST_AT_ONCE = 500
_REFUSED = "Invalid user id"
_PROGRAMS = ("SuspendProgram", "ResumeProgram")
_SECONDS = re.compile(r"\d+")

COLUMNS = tuple(tables.Column(title, is_left=True) for title in ("node", "now", "what", "why"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The action for one node.

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


def steps(times: Schedule, nodes: Mapping[str, Node], delays: Delays, now_s: float) -> tuple[Step, ...]:
    """Return a step for each node of the plan, in the order of their names.

    Raises:
        RequestError: Slurm does not know one of them.
    """
    unknown = sorted(times.on_s.keys() - nodes.keys())
    if unknown:
        known = ", ".join(sorted(nodes)[:SHOWN]) + (", ..." if len(nodes) > SHOWN else "")
        message = (
            f"Node {unknown[0]!r} of the plan must be one of Slurm's nodes; got {known or 'none'}. "
            "Write 'names' into the cluster file, and plan again."
        )
        raise RequestError(message)
    return tuple(_step(nodes[name], times, delays, now_s) for name in sorted(times.on_s))


def _step(node: Node, times: Schedule, delays: Delays, now_s: float) -> Step:
    if times.is_on(node.name, now_s, delays.resume_s):
        action, why = _step_if_needed(node)
    else:
        action, why = _step_if_unneeded(node, times.next_start_s(node.name, now_s) - now_s, delays)
    return Step(node=node.name, power=node.power, action=action, why=why)


def _step_if_needed(node: Node) -> tuple[Action, str]:
    if node.power == "on":
        return "leave", "as planned"
    if node.untouchable_reason or node.power != "off":
        return "leave", node.untouchable_reason or f"it is {node.power}"
    return "resume", "the plan has it on"


def _step_if_unneeded(node: Node, next_in_s: float, delays: Delays) -> tuple[Action, str]:
    if node.power in ("off", "going down"):
        return "leave", "as planned"
    obstacle = next(_obstacles(node, next_in_s, delays), "")
    if obstacle:
        return "leave", obstacle
    if next_in_s == float("inf"):
        return "suspend", "the plan does not use it any more"
    return "suspend", f"the plan needs it in {figures.duration(next_in_s)}"


def _obstacles(node: Node, next_in_s: float, delays: Delays) -> Iterator[str]:
    if node.untouchable_reason or node.keep_on_reason:
        yield node.untouchable_reason or node.keep_on_reason
    if node.power == "coming up":
        yield "it is coming up"
    if next_in_s <= delays.suspend_s + delays.resume_s:
        yield f"the plan needs it in {figures.duration(next_in_s)}, before it could be off and on again"


def power_saving_delays(settings: Mapping[str, str]) -> Delays:
    """Return the delays of power saving, by slurmctld's *settings*.

    Raises:
        RequestError: Power saving is not set up, so a suspended node would not come back for a job.
    """
    missing = [name for name in _PROGRAMS if not settings.get(name.lower())]
    if not _SECONDS.match(settings.get("suspendtime", "")):
        missing.append("SuspendTime")
    if missing:
        message = (
            "Slurm must be set up to save power, so that a job wakes the node that it needs; got no "
            f"{', '.join(missing)} in slurm.conf. docs/planning.md says how."
        )
        raise RequestError(message)
    return Delays(suspend_s=_seconds(settings, "suspendtimeout"), resume_s=_seconds(settings, "resumetimeout"))


def carry_out(due: Iterable[Step], settings: Mapping[str, str]) -> None:
    """Have slurmctld carry out the steps *due*.

    Raises:
        RequestError: It refuses.
    """
    wanted = list(due)
    for action, state in STATES.items():
        names = [step.node for step in wanted if step.action == action]
        for first in range(0, len(names), _MOST_AT_ONCE):
            _update(names[first : first + _MOST_AT_ONCE], state, settings)


def _update(names: Iterable[str], state: str, settings: Mapping[str, str]) -> None:
    try:
        scontrol.run("scontrol", "update", f"NodeName={','.join(names)}", f"State={state}")
    except RequestError as error:
        if _REFUSED not in str(error):
            raise
        admins = dict.fromkeys(["root", settings.get("slurmuser", "").partition("(")[0] or "slurm"])
        message = (
            f"Nodes must be suspended and resumed by an admin of Slurm; got user {user_name()!r}, whom slurmctld "
            f"refuses. Run it as {' or '.join(admins)}."
        )
        raise RequestError(message) from error


def _seconds(settings: Mapping[str, str], key: str) -> float:
    number = _SECONDS.match(settings.get(key, ""))
    return float(number[0]) if number else 0.0


def power(plan_file: Path, *, yes: bool, as_json: bool) -> None:
    """Show which nodes the plan has suspended and resumed now; with --yes, have Slurm do so."""
    now_s = time.time()
    times = read_schedule(plan_file, now_s)
    settings = scontrol.configuration()
    delays = power_saving_delays(settings)
    due = steps(times, read_nodes(settings), delays, now_s)
    if yes:
        carry_out(due, settings)
    next_in_s = times.next_change_s(now_s, delays.resume_s) - now_s
    if as_json:
        tables.print_json(document(due, next_in_s, applied=yes))
        return
    tables.show_rows(COLUMNS, [[step.node, step.power, step.action, step.why] for step in due])
    tables.show("", *lines(due, next_in_s, applied=yes))


def document(due: Sequence[Step], next_in_s: float, *, applied: bool) -> Mapping[str, Any]:
    """Return what `gpusage slurm power --json` prints."""
    return {
        "schema": "gpusage.slurm.power/1",
        "applied": applied,
        "next_change_in_s": None if next_in_s == float("inf") else round(next_in_s),
        "nodes": [asdict(step) for step in due],
    }


def lines(due: Sequence[Step], next_in_s: float, *, applied: bool) -> Iterator[str]:
    """Yield the lines below the table."""
    counts = Counter(step.action for step in due if step.action != "leave")
    parts = [f"{count} to {action}" for action, count in counts.items()]
    if not parts:
        yield "Nothing to do now."
    elif applied:
        yield f"Slurm was asked: {', '.join(parts)}."
    else:
        yield f"{', '.join(parts).capitalize()}. Add --yes to have Slurm do it."
    if next_in_s < float("inf"):
        yield f"The plan's next change comes in {figures.duration(next_in_s)}: run this again by then, such as by cron."
