"""Jobs that ran out of memory: handled once, recorded, and only where the site wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpusage.service import requeue
from gpusage.service.requeue import REASON, RUN_LIMIT_S, OutOfMemoryRequeue
from gpusage.settings.configuration import Configuration
from gpusage.store.decisions import StoreError
from gpusage.store.rows import UsageQuery
from gpusage_hooks import samples
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import Context
from gpusage_hooks.types import AnnotatedJob, OutOfMemoryJob, SharingRules, Usage

CONTEXT = samples.context()
MARK = "gpusage 0123456789ab REWRITE gres/gpu:1 -> gres/mps:25 | cheap"
JOB = replace(samples.marked_job(), state="ended", mark=MARK)
FAILED = OutOfMemoryJob(job=JOB, started_at_s=1000.0, ended_at_s=1060.0)


class Site:
    """A workload manager with jobs that ran out of memory, and a store; what both received."""

    def __init__(self, *failed: OutOfMemoryJob, mode: str = "enforce", rescue: bool = True, killed: str = "") -> None:
        self.failed: Sequence[OutOfMemoryJob] = failed
        self.requeued: list[str] = []
        self.stored: list[Usage] = []
        self.observed_usages: list[Usage] = []
        self.known: tuple[Usage, ...] = ()
        self.answer: Callable[[], bool] = lambda: True
        self.broken = False
        configuration = replace(Configuration(), mode=mode, sharing=SharingRules(rescue=rescue))  # type: ignore[arg-type] - a mode
        advisor = SimpleNamespace(hooks=self, context=lambda _: CONTEXT)
        clusters = {samples.MANAGER: samples.policy_input().cluster}
        self.snapshot: Any = SimpleNamespace(
            configuration=configuration, advisor=advisor, killed=killed or None, clusters=clusters
        )
        self.requeue = OutOfMemoryRequeue(self)  # type: ignore[arg-type] - stands for the store

    def run(self) -> OutOfMemoryRequeue:
        """Handle the jobs once."""
        self.requeue.run(self.snapshot)
        return self.requeue

    def find_out_of_memory_jobs(self, manager: str, context: Context) -> Sequence[OutOfMemoryJob]:
        """Answer as an adapter would."""
        assert (manager, context) == (samples.MANAGER, CONTEXT)
        return self.failed

    def requeue_on_whole_gpu(self, job: AnnotatedJob, reason: str, context: Context) -> bool:
        """Answer as an adapter would."""
        assert context == CONTEXT
        self.requeued.append(f"{job.job_id}: {reason}")
        return self.answer()

    def usage_observed(self, usage: Usage) -> None:
        """Receive a usage as a plugin would."""
        self.observed_usages.append(usage)

    def usage(self, question: UsageQuery) -> list[SimpleNamespace]:
        """Answer as the store would."""
        assert question.number == "0123456789ab"
        return [SimpleNamespace(usage=usage) for usage in self.known]

    def find(self, number: str) -> None:
        """Answer as a store that keeps no decision."""
        assert number == "0123456789ab"

    def record_usage(self, usages: Sequence[Usage]) -> None:
        """Keep as the store would."""
        if self.broken:
            message = "Store must be writable; got a full disk."
            raise StoreError(message)
        self.stored += usages


def refused() -> bool:
    raise RequestError("Command 'scontrol requeue' must succeed; got: Access denied.")


@pytest.mark.parametrize("site", [Site(FAILED), Site(FAILED, mode="advise"), Site(FAILED, killed="yes")])
def test_a_job_that_runs_again_is_set_right_once_and_recorded_in_every_mode(site: Site) -> None:
    """Its own epilog made it run again, on the GPU that its user asked for."""
    for _ in range(3):
        handled = site.run()
    assert site.requeued == [f"{JOB.job_id}: {REASON}"]
    (usage,) = site.stored
    assert (usage.outcome, usage.number, usage.started_at_s) == ("out_of_memory", "0123456789ab", 1000.0)
    assert site.observed_usages == site.stored
    assert (handled.count, handled.refusals()) == (1, [])


def test_what_was_observed_of_the_run_stays() -> None:
    site = Site(FAILED)
    usage = Usage(
        number="0123456789ab",
        manager=JOB.manager,
        job_id=JOB.job_id,
        user=JOB.user,
        outcome="failed",
        started_at_s=1000.0,
        ended_at_s=1060.0,
        memory_bytes=5,
    )
    site.known = (replace(usage, started_at_s=1.0), usage)
    site.run()
    assert site.stored == [replace(usage, outcome="out_of_memory")]


@pytest.mark.parametrize(
    ("site", "why"),
    [
        (Site(replace(FAILED, final="it was submitted with --no-requeue")), "it was submitted with --no-requeue"),
        (Site(replace(FAILED, final="so"), rescue=False), "the site has set sharing.rescue = false"),
    ],
)
def test_of_a_job_that_does_not_run_again_the_miss_is_recorded_alone(site: Site, why: str) -> None:
    for _ in range(2):
        handled = site.run()
    assert (site.requeued, handled.count, len(site.stored)) == ([], 0, 1)
    (refusal,) = handled.refusals()
    assert refusal.endswith(f"of ada ran out of memory in its share, and is not run again: {why}")
    site.failed = ()
    assert site.run().refusals() == []


@pytest.mark.parametrize(("answer", "why"), [(refused, "Access denied."), (lambda: False, "cannot do it")])
def test_a_refusal_is_reported_and_not_tried_again(answer: Callable[[], bool], why: str) -> None:
    site = Site(FAILED)
    site.answer = answer
    for _ in range(3):
        (refusal,) = site.run().refusals()
        assert refusal.endswith(why)
    assert (len(site.requeued), len(site.stored)) == (1, 1)


def test_a_store_that_fails_costs_no_requeue_and_is_written_later() -> None:
    site = Site(FAILED)
    site.broken = True
    with pytest.raises(StoreError):
        site.run()
    assert len(site.requeued) == 1
    site.broken, site.failed = False, ()
    site.run()
    assert [usage.outcome for usage in site.stored] == ["out_of_memory"]


def test_one_users_many_failed_jobs_hold_up_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A requeue waits until a job has left its node, and a look does more than to requeue."""
    now_s = [0.0]
    monkeypatch.setattr(requeue.time, "monotonic", lambda: now_s[0])
    users = ["eve"] * 50 + ["ada"]
    jobs = [replace(JOB, job_id=str(number), user=user) for number, user in enumerate(users)]
    site = Site(*(replace(FAILED, job=job) for job in jobs))

    def slow() -> bool:
        now_s[0] += RUN_LIMIT_S / 3
        return True

    site.answer = slow
    site.run()
    assert [each.partition(":")[0] for each in site.requeued] == ["0", "50", "1"]
    assert [usage.user for usage in site.stored] == ["eve", "ada", "eve"]
    site.run()
    assert len(site.requeued) == 6
