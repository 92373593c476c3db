"""Whether history may decide: what was told of jobs before they ran, counted against what they then did.

Invariants:

1. A run counts as held where it stayed below the upper end of all that was told of it.
2. Of each user the newest `MOST_OF_ONE` count for the site: nobody earns its trust alone.
3. A user whose own jobs were told badly has them observed only, whatever the site has earned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpusage_hooks.types import Figure, Known, Usage

LEAST_CHECKED = 200
LEAST_HELD = 0.9
MOST_OF_ONE = 50
LEAST_OWN = 20
"""Checked runs of one user: with fewer nobody knows how this user's jobs are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many runs were checked, and how many held."""

    checked: int = 0
    held: int = 0

    @property
    def share(self) -> float:
        """Return the share of the checked runs that held, 0 where there are none."""
        return self.held / self.checked if self.checked else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What history has earned at a site.

    Attributes:
        site: The newest runs of all users.
        users: The newest of each user.
    """

    site: Tally = field(default_factory=Tally)
    users: Mapping[str, Tally] = field(default_factory=dict)

    def why_not(self, user: str) -> str:
        """Return why the jobs of *user* are observed only, one clause; empty where history may decide them."""
        if self.site.checked < LEAST_CHECKED:
            return f"history is observed only: {self.site.checked} of {LEAST_CHECKED} runs of this site are checked yet"
        if self.site.share < LEAST_HELD:
            return f"history is observed only: {_held(self.site)} runs of this site stayed below what was told"
        own = self.users.get(user, Tally())
        if own.checked < LEAST_OWN:
            return f"history is observed only: {own.checked} of {LEAST_OWN} runs of this user are checked yet"
        if own.share < LEAST_HELD:
            return f"history is observed only: {_held(own)} runs of this user stayed below what was told"
        return ""


NO_TRUST = Trust()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Whether one run held.

    Attributes:
        user: As submissions name it.
    """

    user: str
    ended_at_s: float
    held: bool


def held(told: Known, usage: Usage, utilization: float | None) -> bool | None:
    """Tell whether a run stayed below all that was *told* of it; ``None`` where nothing that was told was seen.

    Args:
        told: Of the job alone on the GPU that it then had.
        usage: What the run did.
        utilization: As in `PastRun`; ``None`` where nothing tells of it.
    """
    lacked = usage.outcome == "out_of_memory"
    seen = [
        _below(told.memory_bytes, float("inf") if lacked else usage.memory_bytes),
        _below(told.gpu_utilization, utilization),
    ]
    known = [each for each in seen if each is not None]
    return all(known) if known else None


def trust_of(checked: Iterable[Checked]) -> Trust:
    """Return what *checked* runs, in any order, have earned."""
    by_user: dict[str, list[bool]] = defaultdict(list)
    for each in sorted(checked, key=lambda each: each.ended_at_s):
        by_user[each.user].append(each.held)
    users = {user: _tally(runs[-MOST_OF_ONE:]) for user, runs in by_user.items()}
    return Trust(
        site=Tally(
            checked=sum(tally.checked for tally in users.values()), held=sum(tally.held for tally in users.values())
        ),
        users=users,
    )


def _tally(runs: list[bool]) -> Tally:
    return Tally(checked=len(runs), held=sum(runs))


def _below(told: Figure | None, value: float | None) -> bool | None:
    return None if told is None or value is None else value <= told.interval.high


def _held(tally: Tally) -> str:
    return f"{100 * tally.share:.0f} % of {tally.checked}"
