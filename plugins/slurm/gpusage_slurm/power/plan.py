"""A plan's JSON, as `gpusage plan --json` prints it: when each node is to be on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from gpusage.boundary.typed_documents import MismatchError, read_as
from gpusage.cli.user_file import read_document, refusal
from gpusage_hooks.errors import RequestError

SCHEMA = "gpusage.plan/1"
_REMEDY = "Write it with `gpusage plan --json`."
_MOST_S = 1e11
_Time = Annotated[float, Meta(ge=0, le=_MOST_S, description="a time of at least 0, in seconds")]
_CLOCK_S = 60.0
"""By which the clocks of two hosts may differ."""


class _Node(Struct, frozen=True, kw_only=True):
    """A node while it is on; *ready_s* is when it has booted."""

    node: str
    start_s: _Time
    end_s: _Time
    ready_s: _Time | None = None


class _Document(Struct, frozen=True, kw_only=True):
    """What is read of a plan; all else is passed over."""

    schema: Annotated[str, Meta(pattern=f"^{re.escape(SCHEMA)}\\Z", description=repr(SCHEMA))]
    planned_at_s: _Time
    nodes: tuple[_Node, ...]
    unused_nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a plan has its nodes on.

    Attributes:
        planned_at_s: When it was made, in Unix seconds.
        on_s: From when until when each node is on, in Unix seconds; none for a node that the plan does not use.
    """

    on_s: Mapping[str, tuple[tuple[float, float], ...]]
    planned_at_s: float = 0.0

    @property
    def end_s(self) -> float:
        """Return when the last node is no longer needed."""
        return max((end_s for each in self.on_s.values() for _, end_s in each), default=0.0)

    def is_on(self, node: str, now_s: float, lead_s: float) -> bool:
        """Return whether *node* is to be on, or must begin to boot, which takes *lead_s*."""
        return any(start_s - lead_s <= now_s < end_s for start_s, end_s in self.on_s[node])

    def next_start_s(self, node: str, now_s: float) -> float:
        """Return when *node* is needed next, infinity where it is not."""
        return min((start_s for start_s, _ in self.on_s[node] if start_s > now_s), default=float("inf"))

    def next_change_s(self, now_s: float, lead_s: float) -> float:
        """Return when there is something to do again, infinity where there is not."""
        spans = (span for each in self.on_s.values() for span in each)
        moments = (moment for start_s, end_s in spans for moment in (start_s - lead_s, end_s))
        return min((moment for moment in moments if moment > now_s), default=float("inf"))


def read_schedule(path: Path, now_s: float) -> Schedule:
    """Return the times of the plan in the file at *path*.

    Raises:
        RequestError: It cannot be read, is no plan, is of a time after *now_s*, or has ended by then.
    """
    times = parse_schedule(read_document(path, "Plan"), str(path))
    if times.planned_at_s > now_s + _CLOCK_S:
        message = (
            f"Plan {str(path)!r} must have been made before now; got planned_at_s {times.planned_at_s:.0f}, which is "
            f"{times.planned_at_s - now_s:.0f} s from now. Set the clock, or plan again."
        )
        raise RequestError(message)
    if times.end_s <= now_s:
        message = (
            f"Plan {str(path)!r} must not be over; got one that ended {now_s - times.end_s:.0f} s ago. Plan again."
        )
        raise RequestError(message)
    return times


def parse_schedule(document: object, origin: str) -> Schedule:
    """Return the times of *document*; *origin* is its file, for people.

    Raises:
        RequestError: It is no plan.
    """
    try:
        plan = read_as(_Document, document if isinstance(document, dict) else {})
    except MismatchError as error:
        raise refusal(error, f"plan {origin!r}", _REMEDY) from error
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in plan.unused_nodes}
    for each in plan.nodes:
        needed_s = each.start_s if each.ready_s is None else each.ready_s  # Slurm's own ResumeTimeout goes before it
        spans.setdefault(each.node, []).append((plan.planned_at_s + needed_s, plan.planned_at_s + each.end_s))
    on_s = {name: tuple(sorted(each)) for name, each in spans.items()}
    return Schedule(on_s=on_s, planned_at_s=plan.planned_at_s)
