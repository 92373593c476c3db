"""Which jobs of late compete for fast GPUs."""

from __future__ import annotations

from gpusage.service.rivals import REMEMBERED_OF_ONE, REMEMBERED_RIVALS, Rivals
from gpusage.verdict import Verdict
from gpusage_hooks.types import Code, Decision, GpuRequest, Job, Rendered, Submission


def verdict(step_s: float, *, manager: str = "slurm", dry_run: bool = False) -> Verdict:
    """Return one on a job that may choose between two types, or on none where *step_s* is 0."""
    submission, request = Submission(manager=manager), GpuRequest(gpu_count=1)
    times_s = {"new": step_s, "old": 2 * step_s} if step_s else {}
    return Verdict(
        submission=submission,
        job=Job(submission=submission, request=request, request_text="", dry_run=dry_run),
        decision=Decision(code=Code.KEEP, request=request, reasons=(), plugin="test", step_times_s=times_s),
        rendered=Rendered(before="", after="", fields={}),
        mode="enforce",
    )


def test_the_jobs_of_late_that_may_choose_are_remembered_by_manager() -> None:
    late = Rivals()
    for each in (None, verdict(0), verdict(1, manager="other"), verdict(2, dry_run=True)):
        late.remember(each, {})
    assert late.of("slurm") == ()
    for second in range(1, REMEMBERED_RIVALS + 3):
        late.remember(verdict(second), {"user": f"user{second}"})
    rivals = late.of("slurm")
    assert len(rivals) == REMEMBERED_RIVALS
    assert (rivals[0], rivals[-1]) == ({"new": 3, "old": 6}, {"new": 66, "old": 132})


def test_one_user_s_many_jobs_push_out_nobody_else_s() -> None:
    """Also where the verdict was given on another user's job."""
    late = Rivals()
    late.remember(verdict(1), {"user": "ann"})
    for _ in range(2 * REMEMBERED_RIVALS):
        late.remember(verdict(2), {"user": "bob"})
    rivals = late.of("slurm")
    assert len(rivals) == 1 + REMEMBERED_OF_ONE
    assert rivals[0] == {"new": 1, "old": 2}
