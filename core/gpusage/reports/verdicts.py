"""Verdicts on runs and jobs, each with its rule; an unseen run is never called wasteful."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import msgspec
from msgspec.structs import replace

from gpusage.experience import finished_jobs
from gpusage.experience.finished_jobs import HOST_BOUND_BELOW, LEAST_SAMPLED_S, UNUSED_BELOW
from gpusage.reports.amounts import Amounts, amounts_of, had_whole_gpus, total
from gpusage.reports.jobs import newest_seen, runs_by_job
from gpusage.reports.joining import joined
from gpusage.store.rows import Observation
from gpusage_hooks.types import Usage
from gpusage_hooks.units import percent

Verdict = Literal["busy", "waits", "unused", "beside others", "not seen"]
RULES: Mapping[str, str] = {
    "waits": f"a kernel ran in less than {percent(HOST_BOUND_BELOW)} of the time: the job waits for its host",
    "unused": f"a kernel ran in less than {100 * UNUSED_BELOW:g} % of the time",
}
"""Of the verdicts on jobs whose GPUs were idle."""
WORST_COUNT = 10
HARDLY_USED_BELOW = 0.2
"""A whole GPU with a kernel in less of its time is hardly used: the smallest usual share is a quarter of a GPU."""


class Wasted(msgspec.Struct, frozen=True, kw_only=True):
    """A job with much idle time of a GPU, over all its runs.

    Attributes:
        advice: Suggested request for the next time; empty where too few samples show any.
    """

    KEY: ClassVar = ("manager", "job_id")
    MOST: ClassVar = WORST_COUNT
    manager: str
    job_id: str
    user: str
    job_name: str
    gpu: str
    verdict: Verdict
    hours: Amounts
    advice: str

    @property
    def rank(self) -> tuple[float, str, str]:
        """Return the place in a table, the most idle hours first; the job's number breaks ties."""
        return -self.hours.idle, self.manager, self.job_id


class HardlyUsed(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that held whole GPUs, with a kernel in less than `HARDLY_USED_BELOW` of their time."""

    job_count: int
    hours: Amounts


class WaitingUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user with jobs that wait for their hosts: for data, or for processors.

    Attributes:
        waits_for: Cause of the wait of the job with the most idle GPU hours.
        most_idle: Idle GPU hours of this job.
    """

    KEY: ClassVar = ("user",)
    user: str
    job_count: int
    hours: Amounts
    waits_for: str
    most_idle: float = 0.0

    @property
    def rank(self) -> tuple[float, str]:
        """Return the place in a table, the most idle hours first."""
        return -self.hours.idle, self.user

    @staticmethod
    def joined(parts: Sequence[WaitingUser]) -> WaitingUser:
        """Return the sum of *parts*, of the same user: the job that loses the most shows where a change pays."""
        hours, job_count = total(each.hours for each in parts), sum(each.job_count for each in parts)
        return replace(max(parts, key=lambda each: each.most_idle), job_count=job_count, hours=hours)


def verdict_of(usage: Usage, hours: Amounts, least_s: float = LEAST_SAMPLED_S) -> Verdict:
    """Return the verdict on a run or job with *hours*; *usage* shows why they may be unseen."""
    seen = hours.used + hours.idle
    if not seen:
        # Counters of a shared GPU do not separate jobs, which no longer sampling changes.
        sampled = usage.sampled_s >= least_s and usage.gpu_utilization is not None
        return "beside others" if sampled and finished_jobs.was_gpu_shared(usage) else "not seen"
    utilization = hours.used / seen
    if utilization < UNUSED_BELOW:
        return "unused"
    return "waits" if utilization < HOST_BOUND_BELOW else "busy"


def most_idle_jobs(observations: Sequence[Observation], least_s: float = LEAST_SAMPLED_S) -> tuple[Wasted, ...]:
    """Return the jobs with the most idle GPU hours, the worst first; *observations* are the newest first."""
    wasted = (_wasted(runs, least_s) for runs in runs_by_job(observations))
    idle = (job for job in wasted if job.verdict in RULES)
    return tuple(sorted(idle, key=lambda job: job.rank)[:WORST_COUNT])


def hardly_used_jobs(observations: Sequence[Observation], least_s: float = LEAST_SAMPLED_S) -> HardlyUsed:
    """Return the jobs that held whole GPUs and hardly used them in their seen time."""
    # Strictly less, so that a job without any seen time (0 < 0) is none of them.
    jobs = [_wasted(runs, least_s) for runs in runs_by_job(filter(had_whole_gpus, observations))]
    hardly = [job for job in jobs if job.hours.used < HARDLY_USED_BELOW * (job.hours.used + job.hours.idle)]
    return HardlyUsed(job_count=len(hardly), hours=total(job.hours for job in hardly))


def waiting_users(observations: Sequence[Observation], least_s: float = LEAST_SAMPLED_S) -> tuple[WaitingUser, ...]:
    """Return the users whose jobs wait for their hosts, the most idle GPU hours first."""
    waiting = []
    for runs in runs_by_job(observations):
        job = _wasted(runs, least_s)
        if job.verdict == "waits":
            cause, idle = finished_jobs.describe_host(newest_seen(runs, least_s).usage), job.hours.idle
            waiting.append(WaitingUser(user=job.user, job_count=1, hours=job.hours, waits_for=cause, most_idle=idle))
    return joined([tuple(waiting), ()])


def _wasted(runs: Sequence[Observation], least_s: float) -> Wasted:
    # Hours are of all runs. The advice is for the next run, so the newest one that was seen speaks for the job.
    shown, hours = newest_seen(runs, least_s), total(amounts_of(run, least_s) for run in runs)
    usage = shown.usage
    return Wasted(
        manager=usage.manager,
        job_id=usage.job_id,
        user=usage.user,
        job_name=usage.job_name,
        gpu=usage.gpu,
        verdict=verdict_of(usage, hours, least_s),
        hours=hours,
        advice=finished_jobs.suggest_next_request(usage, shown.decision, least_s),
    )
