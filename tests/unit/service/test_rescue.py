"""The daemon's way with starved jobs: once, recorded, and only where the site wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpusage.configuration import Configuration
from gpusage.service import rescue as rescue_module
from gpusage.service.rescue import LOOK_LIMIT_S, REASON, Rescue
from gpusage.store.decisions import StoreError
from gpusage_hooks import samples
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import Context
from gpusage_hooks.types import MarkedJob, SharingRules, StarvedJob, Usage

CONTEXT = samples.context()
MARK = "gpusage 0123456789ab REWRITE gres/gpu:1 -> gres/mps:25 | cheap"
JOB = replace(samples.marked_job(), state="ended", mark=MARK)
STARVED = StarvedJob(job=JOB, started_at_s=1000.0, ended_at_s=1060.0)


class Site:
    """A workload manager with starved jobs, and a store; what both were told."""

    def __init__(self, *starved: StarvedJob, mode: str = "enforce", rescue: bool = True, killed: str = "") -> None:
        self.starved: Sequence[StarvedJob] = starved
        self.rescued: list[str] = []
        self.kept: list[Usage] = []
        self.heard: list[Usage] = []
        self.known: tuple[Usage, ...] = ()
        self.answer: Callable[[], bool] = lambda: True
        self.broken = False
        configuration = replace(Configuration(), mode=mode, sharing=SharingRules(rescue=rescue))  # type: ignore[arg-type] - a mode
        advisor = SimpleNamespace(hooks=self, context=lambda _: CONTEXT)
        clusters = {samples.MANAGER: samples.case().cluster}
        self.snapshot: Any = SimpleNamespace(
            configuration=configuration, advisor=advisor, killed=killed or None, clusters=clusters
        )
        self.rescue_of_site = Rescue(lambda: self)  # type: ignore[arg-type,return-value] - stands for the store

    def look(self) -> Rescue:
        """Look once."""
        self.rescue_of_site.look(self.snapshot)
        return self.rescue_of_site

    def starved_jobs(self, manager: str, context: Context) -> Sequence[StarvedJob]:
        """Answer as an adapter would."""
        assert (manager, context) == (samples.MANAGER, CONTEXT)
        return self.starved

    def rescue(self, job: MarkedJob, reason: str, context: Context) -> bool:
        """Answer as an adapter would."""
        assert context == CONTEXT
        self.rescued.append(f"{job.job_id}: {reason}")
        return self.answer()

    def usage_observed(self, usage: Usage) -> None:
        """Hear as a plugin would."""
        self.heard.append(usage)

    def usage(self, **question: str) -> list[SimpleNamespace]:
        """Answer as the store would."""
        assert question["number"] == "0123456789ab"
        return [SimpleNamespace(usage=usage) for usage in self.known]

    def find(self, number: str) -> None:
        """Answer as a store that keeps no decision."""
        assert number == "0123456789ab"

    def record_usage(self, usages: Sequence[Usage]) -> None:
        """Keep as the store would."""
        if self.broken:
            message = "Store must be writable; got a full disk."
            raise StoreError(message)
        self.kept += usages


def refused() -> bool:
    raise RequestError("Command 'scontrol requeue' must succeed; got: Access denied.")  # noqa: EM101, TRY003 - a test


def test_a_starved_job_is_rescued_once_and_recorded() -> None:
    site = Site(STARVED)
    for _ in range(3):
        rescue = site.look()
    assert site.rescued == [f"{JOB.job_id}: {REASON}"]
    (usage,) = site.kept
    assert (usage.outcome, usage.number, usage.started_at_s) == ("out_of_memory", "0123456789ab", 1000.0)
    assert site.heard == site.kept
    assert (rescue.count, rescue.troubles()) == (1, [])


def test_what_was_observed_of_the_run_stays() -> None:
    site = Site(STARVED)
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
    site.look()
    assert site.kept == [replace(usage, outcome="out_of_memory")]


@pytest.mark.parametrize(
    ("site", "why"),
    [
        (Site(replace(STARVED, final="it was submitted with --no-requeue")), "it was submitted with --no-requeue"),
        (Site(STARVED, rescue=False), "the site has set sharing.rescue = false"),
        (Site(STARVED, mode="advise"), "nothing is changed in mode advise"),
        (Site(STARVED, killed="the kill switch is on"), "the kill switch is on"),
    ],
)
def test_where_nothing_may_be_changed_the_miss_is_recorded_alone(site: Site, why: str) -> None:
    for _ in range(2):
        rescue = site.look()
    assert (site.rescued, rescue.count, len(site.kept)) == ([], 0, 1)
    (told,) = rescue.troubles()
    assert told.endswith(f"of ada ran out of memory in its share, and is not run again: {why}")
    site.starved = ()
    assert site.look().troubles() == []


@pytest.mark.parametrize(("answer", "why"), [(refused, "Access denied."), (lambda: False, "cannot do it")])
def test_a_refusal_is_told_and_not_tried_again(answer: Callable[[], bool], why: str) -> None:
    site = Site(STARVED)
    site.answer = answer
    for _ in range(3):
        (told,) = site.look().troubles()
        assert told.endswith(why)
    assert (len(site.rescued), len(site.kept)) == (1, 1)


def test_a_store_that_fails_costs_no_rescue_and_is_written_later() -> None:
    site = Site(STARVED)
    site.broken = True
    with pytest.raises(StoreError):
        site.look()
    assert len(site.rescued) == 1
    site.broken, site.starved = False, ()
    site.look()
    assert [usage.outcome for usage in site.kept] == ["out_of_memory"]


def test_one_users_many_starved_jobs_hold_up_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rescue waits until a job has left its node, and a look does more than to rescue."""
    now_s = [0.0]
    monkeypatch.setattr(rescue_module.time, "monotonic", lambda: now_s[0])
    users = ["eve"] * 50 + ["ada"]
    jobs = [replace(JOB, job_id=str(number), user=user) for number, user in enumerate(users)]
    site = Site(*(replace(STARVED, job=job) for job in jobs))

    def slow() -> bool:
        now_s[0] += LOOK_LIMIT_S / 3
        return True

    site.answer = slow
    site.look()
    assert [told.partition(":")[0] for told in site.rescued] == ["0", "50", "1"]
    assert [usage.user for usage in site.kept] == ["eve", "ada", "eve"]
    site.look()
    assert len(site.rescued) == 6
