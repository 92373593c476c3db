"""Promises to jobs with shares: kept, broken, or nothing tells; the rule is that of learning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpusage.learning.promises import PARTNERS, TIMING, is_kept
from gpusage.learning.runs import Run, runs_of
from gpusage.reports.amounts import is_share_given, is_share_withheld
from gpusage.store.usage_rows import Observation

RULE = (
    "A promise is broken where a job died of too little memory, took more than its share was to book, or took longer "
    f"than {PARTNERS:g} (partners) times {TIMING:g} (timing) times the worst price. It is kept where durations show "
    "that, or where the share had idle time. Nothing tells where too few runs of the same job are of the same length."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """How many promises there were."""

    kept: int = 0
    broken: int = 0
    unknown: int = 0


def promises(observations: Sequence[Observation], least_s: float) -> tuple[Promises, Promises]:
    """Return the promises of the shares that were given, and of those that were not, by what whole runs show.

    A job that was rescued runs on a whole GPU and has no promise any more.
    """
    found = [*judged(observations, least_s)]
    given = (kept for observed, kept in found if is_share_given(observed))
    return _counted(given), _counted(kept for observed, kept in found if is_share_withheld(observed))


def judged(observations: Sequence[Observation], least_s: float) -> Iterator[tuple[Observation, bool | None]]:
    """Yield each run that a share was decided for, with whether its promise was kept, or would have been."""
    runs = [*runs_of(observations, least_s)]
    jobs: dict[object, list[Run]] = defaultdict(list)
    for _, run in sorted(runs, key=lambda pair: pair[1].ended_at_s):
        jobs[_job(run)].append(run)
    for observed, run in runs:
        if run.promised is not None:
            yield observed, is_kept(run, jobs[_job(run)])


def _job(run: Run) -> object:
    return run.identity.fingerprint, run.manner, run.identity.user, run.identity.job_name


def _counted(kept: Iterable[bool | None]) -> Promises:
    answers = list(kept)
    return Promises(kept=answers.count(True), broken=answers.count(False), unknown=answers.count(None))
