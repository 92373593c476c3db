"""Verdicts, and the jobs that waste most."""

from __future__ import annotations

import pytest

from gpusage.experience.finished_jobs import describe_host
from gpusage.reports.amounts import amounts_of
from gpusage.reports.verdicts import hardly_used_jobs, most_idle_jobs, verdict_of, waiting_users
from gpusage.store.rows import Observation
from observed import HALF, NOW_S, record, usage

UNSHARED = record(1, percent=None)


def observed(**rest: object) -> Observation:
    return Observation(usage=usage(UNSHARED, **rest), decision=UNSHARED)


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ({"gpu_utilization": 0.5}, "busy"),
        ({"gpu_utilization": 0.49}, "waits"),
        ({"gpu_utilization": 0.004}, "unused"),
        ({"gpu_utilization": None}, "not seen"),
        ({"gpu_utilization": 0.0, "sampled_s": 30.0, "alone_s": 30.0}, "not seen"),
        ({"gpu_utilization": 0.0, "alone_s": 1000.0}, "beside others"),
    ],
)
def test_a_run_has_the_verdict_of_its_rule(figures: dict[str, float | None], verdict: str) -> None:
    actual = observed(**figures)
    assert verdict_of(actual.usage, amounts_of(actual)) == verdict


def test_jobs_are_ranked_by_idle_gpu_hours_not_by_how_idle_they_were() -> None:
    long = observed(job_id="long", gpu_utilization=0.45, ended_at_s=NOW_S)
    short = observed(job_id="short", gpu_utilization=0.001)
    unseen = observed(job_id="unseen", gpu_utilization=None, ended_at_s=NOW_S)
    assert [job.job_id for job in most_idle_jobs([short, unseen, long])] == ["long", "short"]


def test_a_job_that_ran_twice_is_one_job_of_all_its_runs() -> None:
    first = observed(gpu_utilization=0.1)
    again = observed(gpu_utilization=0.3, started_at_s=NOW_S - 7200, ended_at_s=NOW_S)
    (job,) = most_idle_jobs([again, first])
    # 2 GPUs, two runs of 2 h: 8 GPU hours; idle 4 x 0.9 + 4 x 0.7
    assert (job.hours.booked, job.hours.idle) == (pytest.approx(8.0), pytest.approx(6.4))


def test_what_a_job_should_request_is_told_by_its_newest_run_that_was_seen() -> None:
    """Its last run may be short, or a part of its GPUs on a node without a sampler."""
    seen = observed(gpu_utilization=0.3)
    unseen = observed(gpu_utilization=None, sampled_s=0.0, alone_s=0.0, started_at_s=NOW_S - 60, ended_at_s=NOW_S)
    (alone,), (job,) = most_idle_jobs([seen]), most_idle_jobs([unseen, seen])
    assert alone.advice
    assert job.advice == alone.advice
    assert [user.waits_for for user in waiting_users([unseen, seen])] == [describe_host(seen.usage)]


def test_who_holds_whole_gpus_and_hardly_uses_them_is_listed_and_shares_and_the_unseen_are_not() -> None:
    idle = observed(job_id="idle", gpu_utilization=0.19)
    busy = observed(job_id="busy", gpu_utilization=0.2)
    unseen = observed(job_id="unseen", gpu_utilization=None)
    share = observed(job_id="share", gpu_utilization=0.1, granted=HALF)
    actual = hardly_used_jobs([idle, busy, unseen, share])
    # 2 GPUs for 2 hours
    assert (actual.job_count, actual.hours.booked, actual.hours.idle) == (1, 4.0, pytest.approx(4 * 0.81))


def test_a_user_waits_for_what_the_job_with_most_idle_hours_waits_for() -> None:
    loader = observed(job_id="loader", gpu_utilization=0.1)
    cores = observed(job_id="cores", gpu_utilization=0.4, cpu_s=2 * 7200.0)
    other = observed(job_id="other", gpu_utilization=0.4, user="bob", cpu_s=2 * 7200.0)
    busy = observed(job_id="busy", gpu_utilization=0.9)
    ada, bob = waiting_users([cores, loader, other, busy])
    assert (ada.user, ada.job_count, ada.waits_for.partition(" (")[0]) == ("ada", 2, "its loader")
    assert (bob.user, bob.waits_for) == ("bob", "its processors, which are 100 % busy")
    assert ada.hours.idle == pytest.approx(4 * 0.9 + 4 * 0.6)
