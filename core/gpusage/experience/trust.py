"""Whether predictions may decide: predictions of runs, checked against the runs.

Two rules. A share that a model's prediction promised is checked per user and family (`suspensions`). For a
job that names no model, the site and the job's user must first earn trust in its history (`HistoryTrust`).

Invariants:

1. A suspension starts at most once in `SUSPEND_MISSES` promises and ends only after `PROMISE_WINDOW` more: it cannot
   flutter. While nothing is enforced, runs on whole GPUs show whether the share would have been right, so that it ends.
2. Of each user the newest `MOST_OF_A_USER` runs count for the site: nobody earns its trust alone.
3. Users lose the site's trust, not runs: for most of them, and `LEAST_USERS` at least, estimates must have missed. So
   two users take it from nobody.
4. A user for whose own jobs estimates missed has them observed only, whatever the site has earned.
5. A run that ran out of memory takes its user's trust at once, and nobody else's; it is earned anew.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpusage.experience.identity import LEAST_USERS
from gpusage.experience.runs import Run, history_runs, slowdown_of
from gpusage_hooks.types import ObservedFigures
from gpusage_hooks.units import WHOLE_PERCENT

if TYPE_CHECKING:
    from gpusage.store.rows import Observation  # what decides has no store

PROMISE_WINDOW = 12
"""Newest promises to one user for one model family; `runs.WINDOW_RUNS` counts runs of one job."""
SUSPEND_MISSES = 5
"""Of a window. A tenth of the promises may be broken; then so many are, by chance, in one window of 230."""
RESUME_MISSES = 1
"""Of a whole window, at most, for shares to be enforced again."""
PARTNERS = 1.12
"""How many times as long a step may take beside partners, where shares are capped (docs/decisions/policies.md)."""
TIMING = 1.1
"""Durations of one job differ by as much for other reasons."""
WAITS_FOR_HOST = 0.9
"""A job whose share is idle for a tenth of the time is not slowed down by it."""
LEAST_CHECKED = 200
LEAST_HELD = 0.9
"""The promise of the margins; with `LEAST_CHECKED` runs the standard error of a measured 0.9 is 0.02."""
MOST_OF_A_USER = 50
"""Of the checked runs of a site: no user alone earns or loses its trust (docs/decisions/experience.md)."""
LEAST_OWN = 20
"""Checked runs of one user: with fewer nobody knows how this user's jobs are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Whether a run stayed below the upper ends of its estimates by history.

    Attributes:
        user: Of the job, as submissions name it.
        held: It stayed below all of them.
        out_of_memory: It died of too little memory.
    """

    user: str
    ended_at_s: float
    held: bool
    out_of_memory: bool = False


def promise_held(run: Run, runs: Sequence[Run]) -> bool | None:
    """Return whether *run* did, or would have done, as well on its share as promised; ``None`` where nothing shows it.

    Args:
        run: One run of a job that names a model.
        runs: Those of the same job.
    """
    if run.promised_slowdown is None:
        return None
    if run.out_of_memory or (run.promised_memory_bytes and (run.memory_bytes or 0) > run.promised_memory_bytes):
        return False
    # On the whole GPU, a share would have been right if the job was no busier than its decision assumed.
    if run.share_percent == WHOLE_PERCENT:
        if run.utilization is None or run.utilization_high is None:
            return None
        return run.utilization <= run.utilization_high

    # Without durations to compare, a share that was idle at times cannot have slowed the job down.
    observed = slowdown_of(run, runs)
    if observed is not None:
        return observed <= run.promised_slowdown * PARTNERS * TIMING
    return True if run.utilization is not None and run.utilization < WAITS_FOR_HOST else None


def suspensions(jobs: Iterable[Sequence[Run]]) -> Mapping[tuple[str, ...], str]:
    """Return why shares are only advised for now, one clause, by family and user.

    Args:
        jobs: The runs of each job that names a model, oldest first.
    """
    checks: dict[tuple[str, ...], list[tuple[float, bool]]] = defaultdict(list)
    for runs in jobs:
        for run in runs:
            held = promise_held(run, runs)
            if held is not None:
                checks[run.identity.family, run.identity.user].append((run.ended_at_s, held))

    reasons: dict[tuple[str, ...], str] = {}
    for (family, user), of_kind in checks.items():
        newest_last = [held for _, held in sorted(of_kind)]
        if is_suspended(newest_last):
            newest = newest_last[-PROMISE_WINDOW:]
            missed = f"{newest.count(False)} of the last {len(newest)} predictions for your {family} jobs"
            reasons[family, user] = f"{missed} missed, so gpusage only advises until they hold again"
    return reasons


def is_suspended(held: Iterable[bool]) -> bool:
    """Return whether after promises that were *held* or not, oldest first, no share should be enforced for now."""
    suspended, window = False, deque[bool](maxlen=PROMISE_WINDOW)
    for each in held:
        window.append(each)
        misses = window.count(False)
        is_full = len(window) == PROMISE_WINDOW
        if (is_full and misses <= RESUME_MISSES) if suspended else misses >= SUSPEND_MISSES:
            # An empty window: the next change needs as much evidence again.
            suspended = not suspended
            window.clear()

    return suspended


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
class HistoryTrust:
    """The trust in history at a site.

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

        # Users are counted, not runs: one user's many misses are that user's.
        known = [tally for tally in self.users.values() if tally.checked >= LEAST_OWN]
        missed = sum(tally.share < LEAST_HELD for tally in known)
        if missed >= LEAST_USERS and 2 * missed > len(known):
            return f"history is observed only: its estimates missed for {missed} of {len(known)} users of this site"
        own = self.users.get(user, Tally())
        if own.checked < LEAST_OWN:
            return f"history is observed only: {own.checked} of {LEAST_OWN} runs of this user are checked yet"
        if own.share < LEAST_HELD:
            held = f"{100 * own.share:.0f} % of {own.checked}"
            return f"history is observed only: {held} runs of this user stayed within their estimates"
        return ""


NO_TRUST = HistoryTrust()


def estimate_held(estimate: ObservedFigures, run: Run) -> bool | None:
    """Return whether *run* stayed below all upper ends of *estimate*; ``None`` where nothing of it was observed."""
    # A run that died would have needed more, nobody knows how much.
    memory_bytes = float("inf") if run.out_of_memory else run.memory_bytes
    pairs = ((estimate.memory_bytes, memory_bytes), (estimate.gpu_utilization, run.peak_utilization))
    held = [value <= figure.interval.high for figure, value in pairs if figure is not None and value is not None]
    return all(held) if held else None


def history_checks(observations: Iterable[Observation], least_sampled_s: float) -> Iterator[Check]:
    """Yield the check of each run of which history had estimated something; see `history_runs`."""
    for observation, run in history_runs(observations, least_sampled_s):
        estimates = observation.decision.history_estimates if observation.decision else {}
        held = estimate_held(estimates[run.gpu], run) if run.gpu in estimates else None
        if held is not None:
            user = run.identity.user
            yield Check(user=user, ended_at_s=run.ended_at_s, held=held, out_of_memory=run.out_of_memory)


def history_trust(checks: Iterable[Check]) -> HistoryTrust:
    """Return the trust that follows from *checks*, in any order."""
    by_user: dict[str, list[bool]] = defaultdict(list)
    for check in sorted(checks, key=lambda check: check.ended_at_s):
        # A job was lost: what its user's history had earned before counts no more.
        if check.out_of_memory:
            by_user[check.user].clear()
        by_user[check.user].append(check.held)

    newest = {user: held[-MOST_OF_A_USER:] for user, held in by_user.items()}
    users = {user: Tally(checked=len(held), held=sum(held)) for user, held in newest.items()}
    checked, held = (sum(getattr(tally, name) for tally in users.values()) for name in ("checked", "held"))
    return HistoryTrust(site=Tally(checked=checked, held=held), users=users)
