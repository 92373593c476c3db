"""The daemon's looks at rewritten jobs: how long, how often, and what is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpusage.service import job_monitor
from gpusage.service.job_monitor import JobMonitor, NeighbourLookup
from gpusage.service.snapshots import State
from gpusage.settings.configuration import Configuration, DaemonSettings
from gpusage.store.decisions import DecisionStore
from gpusage.store.opening import open_store
from gpusage_hooks import samples
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import Context
from gpusage_hooks.types import AnnotatedJob, GpuRequest, OutOfMemoryJob, Workload

CONTEXT = samples.context()
NOTHING: dict[str, object] = {"turned_back": 0, "stuck": [], "requeued": 0, "not_requeued": [], "error": None}
JOB = replace(samples.marked_job(), stuck="node n1 is idle")


class Manager:
    """A workload manager with some jobs, and what was asked of it."""

    def __init__(self, *jobs: AnnotatedJob) -> None:
        self.jobs: Sequence[AnnotatedJob] = jobs
        self.visit_count = 0
        self.turned: list[str] = []
        self.response: Callable[[], bool] = lambda: True

    def find_shared_jobs(self, manager: str, states: Sequence[str], context: Context) -> Sequence[AnnotatedJob]:
        """Answer as an adapter would."""
        assert (manager, states, context) == (samples.MANAGER, ("waiting", "running"), CONTEXT)
        self.visit_count += 1
        return self.jobs

    def find_out_of_memory_jobs(self, manager: str, context: Context) -> Sequence[OutOfMemoryJob]:
        """Answer as an adapter would."""
        assert (manager, context) == (samples.MANAGER, CONTEXT)
        return ()

    def restore_request(self, job: AnnotatedJob, reason: str, context: Context) -> bool:
        """Answer as an adapter would."""
        assert context == CONTEXT
        self.turned.append(f"{job.job_id}: {reason}")
        return self.response()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, to be set."""
    now = [1000.0]
    monkeypatch.setattr(job_monitor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def running_monitor(manager: Manager, mode: str = "enforce", kill_reason: str | None = None) -> JobMonitor:
    configuration = replace(Configuration(), mode=mode, daemon=DaemonSettings(stuck_after_s=60))  # type: ignore[arg-type] - a mode
    advisor = SimpleNamespace(hooks=manager, context=lambda _: CONTEXT)
    clusters = {samples.MANAGER: samples.policy_input().cluster}
    snapshot: Any = SimpleNamespace(
        configuration=configuration, advisor=advisor, kill_reason=kill_reason, clusters=clusters
    )
    state = SimpleNamespace(snapshot=snapshot, set_neighbours=lambda *_: None)
    return JobMonitor(cast("State", state), open_store("sqlite:////nowhere/none.db"))


def test_a_job_is_turned_back_once_it_has_been_stuck_for_a_minute(clock: list[float]) -> None:
    manager = Manager(JOB)
    care = running_monitor(manager)
    care.run_once()
    clock[0] += 59
    care.run_once()
    assert manager.turned == []
    clock[0] += 1
    care.run_once()
    assert manager.turned == ["sample:1: node n1 is idle"]
    assert care.status() == {**NOTHING, "turned_back": 1}


@pytest.mark.parametrize(("scopes", "turned"), [(("qos=short", "account=lab"), 0), (("qos=spent", "account=lab"), 1)])
def test_a_waiting_job_that_was_moved_under_a_limit_gets_its_gpu(
    clock: list[float], scopes: tuple[str, ...], turned: int
) -> None:
    manager = Manager(replace(JOB, stuck="", scopes=scopes))
    care = running_monitor(manager)
    clusters: Any = care._state.snapshot.clusters
    clusters[samples.MANAGER] = replace(clusters[samples.MANAGER], unshared={"qos=spent": "it has a limit"})
    care.run_once()
    clock[0] += 60
    care.run_once()
    assert manager.turned == ["sample:1: no share is for it any more: it has a limit"] * turned


def test_a_job_that_is_not_stuck_at_every_look_starts_anew(clock: list[float]) -> None:
    manager = Manager(JOB)
    care = running_monitor(manager)
    for jobs in ((JOB,), (replace(JOB, stuck=""),), (JOB,)):
        manager.jobs = jobs
        care.run_once()
        clock[0] += 40
    assert manager.turned == []


def refused(*_: object) -> bool:
    raise RequestError("Command 'scontrol update' must succeed; got: Access denied.")


def test_what_cannot_be_turned_back_is_told_of_and_not_tried_again(clock: list[float]) -> None:
    manager = Manager(JOB)
    manager.response = lambda: False
    care = running_monitor(manager)
    for _ in range(10):
        care.run_once()
        clock[0] += 60
    assert len(manager.turned) == 1
    (trouble,) = care.status()["stuck"]
    assert "no-such-manager job sample:1 of ada cannot start as a share: node n1 is idle; " in trouble
    assert trouble.endswith("this version of its manager cannot turn it back")
    manager.jobs = ()
    care.run_once()
    assert care.status()["stuck"] == []


def test_after_an_error_a_job_is_tried_again_ever_more_seldom(clock: list[float]) -> None:
    """One command that timed out must not leave a job waiting for ever."""
    manager = Manager(JOB)
    manager.response = refused
    care = running_monitor(manager)
    tries = []
    for _ in range(17):
        care.run_once()
        tries.append(len(manager.turned))
        clock[0] += 60
    assert [tries.index(count) for count in (1, 2, 3, 4, 5)] == [1, 2, 4, 8, 16]  # minutes
    (trouble,) = care.status()["stuck"]
    assert trouble.endswith("Access denied.")
    manager.response = lambda: True
    clock[0] += job_monitor.RETRY_LIMIT_S
    care.run_once()
    assert care.status() == {**NOTHING, "turned_back": 1}


def test_a_job_is_turned_back_once_mode_and_kill_switch_allow_it(clock: list[float]) -> None:
    manager = Manager(JOB)
    care = running_monitor(manager, "advise", "the kill switch is on (/off)")
    for mode, kill_reason in (("advise", None), ("enforce", "the kill switch is on (/off)"), ("enforce", None)):
        for _ in range(2):
            care.run_once()
            clock[0] += 60
        assert manager.turned == []
        care._state = running_monitor(manager, mode, kill_reason)._state
    care.run_once()
    assert manager.turned == ["sample:1: node n1 is idle"]
    assert care.status()["stuck"] == []


@pytest.mark.parametrize(
    ("mode", "kill_reason", "why"),
    [("observe", None, "in mode observe"), ("enforce", "the kill switch is on (/off)", "the kill switch is on")],
)
def test_where_nothing_may_be_changed_jobs_are_only_told_of(
    clock: list[float], mode: str, kill_reason: str | None, why: str
) -> None:
    manager = Manager(JOB)
    care = running_monitor(manager, mode, kill_reason)
    for _ in range(2):
        care.run_once()
        clock[0] += 60
    assert manager.turned == []
    assert why in care.status()["stuck"][0]


def test_nothing_is_asked_while_nothing_was_rewritten_and_nothing_waits(clock: list[float]) -> None:
    """The thread looks where `due` is set; a daemon that was just started looks once."""
    assert clock
    manager = Manager()
    care = running_monitor(manager)
    assert care.due.is_set()
    care.run_once()
    assert not care.due.is_set()
    manager.jobs = (JOB,)
    care.run_once()
    assert care.due.is_set()
    manager.jobs = ()
    for passed_s, is_due in ((59, True), (2, False)):  # a node tells of a job that starved once it has ended
        clock[0] += passed_s
        care.run_once()
        assert care.due.is_set() == is_due


def test_a_manager_that_fails_is_asked_again_and_its_trouble_told(clock: list[float]) -> None:
    assert clock
    manager = Manager(JOB)
    care = running_monitor(manager)
    good = manager.find_shared_jobs
    manager.find_shared_jobs = lambda manager, states, context: 1 / 0  # type: ignore[assignment,return-value,misc]
    care.run_once()
    assert care.due.is_set()
    assert "ZeroDivisionError" in care.status()["error"]
    manager.find_shared_jobs = good  # type: ignore[method-assign]
    care.run_once()
    assert care.status()["error"] is None


def test_a_look_tells_decisions_who_runs_where(clock: list[float]) -> None:
    """Also that nobody does any more; and a store that cannot be read keeps no job from being helped."""
    plain = samples.record()
    request = GpuRequest(gpu_count=0, mps_thread_percent=40)
    decision = replace(plain.decision, request=request, need=samples.need(samples.gpus()[0]))
    record = replace(plain, decision=decision, workload=Workload())
    running = replace(samples.marked_job(), job_id="sample:2", state="running", nodes=("n1",))
    manager, messages = Manager(running, JOB), list[tuple[str, ...]]()
    care = running_monitor(manager)
    care._neighbour_lookup = NeighbourLookup(cast("DecisionStore", SimpleNamespace(find=lambda _: record)))
    state: Any = care._state
    state.set_neighbours = lambda _, there: messages.append(tuple(node for each in there for node in each.nodes))
    care.run_once()
    manager.jobs = (JOB,)
    care.run_once()
    assert messages == [("n1",), ()]
    care._neighbour_lookup = NeighbourLookup(cast("DecisionStore", SimpleNamespace(find=refused)))
    manager.jobs = (running, JOB)
    clock[0] += 60
    care.run_once()
    assert manager.turned == ["sample:1: node n1 is idle"]
    assert "Access denied" in care.status()["error"]
