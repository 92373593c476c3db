"""Which recent jobs compete for fast GPUs."""

from __future__ import annotations

from gpusage.decisions.outcome import Outcome
from gpusage.service.reservations import REMEMBERED_JOBS, RecentJobs
from gpusage_hooks.types import Code, Decision, DecisionRequest, GpuRequest, Job, RenderedDecision


def outcome(step_s: float, *, manager: str = "slurm", dry_run: bool = False) -> Outcome:
    """Return one on a job that may choose between two types, or on none where *step_s* is 0."""
    submission, request = DecisionRequest(manager=manager), GpuRequest(gpu_count=1)
    times_s = {"new": step_s, "old": 2 * step_s} if step_s else {}
    return Outcome(
        submission=submission,
        job=Job(submission=submission, request=request, request_text="", dry_run=dry_run),
        decision=Decision(code=Code.KEEP, request=request, reasons=(), plugin="test", step_times_s=times_s),
        rendered=RenderedDecision(before="", after="", fields={}),
        mode="enforce",
    )


def test_the_jobs_of_late_that_may_choose_are_remembered_by_manager() -> None:
    late = RecentJobs()
    for each in (None, outcome(0), outcome(1, manager="other"), outcome(2, dry_run=True)):
        late.remember(each, {})
    assert late.of("slurm") == ()
    for second in range(1, REMEMBERED_JOBS + 3):
        late.remember(outcome(second), {"user": f"user{second}"})
    recent_jobs = late.of("slurm")
    assert len(recent_jobs) == REMEMBERED_JOBS
    assert (recent_jobs[0], recent_jobs[-1]) == ({"new": 3, "old": 6}, {"new": 66, "old": 132})


def test_one_user_s_many_jobs_count_once() -> None:
    """Also where the verdict was given on another user's job."""
    late = RecentJobs()
    late.remember(outcome(1), {"user": "ann"})
    for second in range(2, 2 * REMEMBERED_JOBS):
        late.remember(outcome(second), {"user": "bob"})
    late.remember(outcome(2), {"user": "bob"})
    assert late.of("slurm") == ({"new": 1, "old": 2}, {"new": 2, "old": 4})
