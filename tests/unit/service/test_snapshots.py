"""What decisions rest on, and how long it holds."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage.experience.learned import NOTHING_LEARNED
from gpusage.plugins.loading import make_hooks
from gpusage.service.configuration_watch import kill_reason
from gpusage.service.snapshots import FAILURES_LIMIT, FAILURES_PER_USER_LIMIT, State
from gpusage.settings.configuration import Configuration, DaemonSettings
from gpusage.settings.configuration_file import load_configuration
from gpusage_hooks import samples
from gpusage_hooks.managers import Manager
from gpusage_hooks.types import Cluster, JobIdentity, Neighbour, Workload
from sites import announced

SLURM = Manager(name="slurm", title="Slurm")
CLUSTER = Cluster(manager="slurm", version="24.11", pools=())


def seeing(observe: Callable[[str], Cluster | None], stale_after_s: float = 60) -> State:
    """Return a state whose one manager answers as *observe* does; nothing runs in the background."""
    advisor = replace(make_advisor(), hooks=make_hooks([announced(observe_cluster=observe)]))
    settings = replace(DaemonSettings(), allowed_users=(), stale_after_s=stale_after_s)
    return State(replace(Configuration(), daemon=settings), advisor, managers={"slurm": SLURM}, path=Path("/none"))


def observe_one(manager: str) -> Cluster | None:
    """See the cluster."""
    return CLUSTER if manager == "slurm" else None


def test_the_status_tells_of_a_cluster_once_decisions_know_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it to be seen may then submit a job."""
    state = seeing(observe_one)
    with monkeypatch.context() as patch:
        patch.setattr(state, "_publish", lambda *, refreshed=False: None)  # as it is called
        state._observe("slurm")
        assert state.status()["clusters"] == {}
    state._publish(refreshed=True)
    assert list(state.status()["clusters"]) == [*state.snapshot.clusters] == ["slurm"]


def test_the_status_names_no_user_who_has_a_limit() -> None:
    """Everybody may read it; decisions know who it is."""
    unshared = {"partition=p": "p is so", "account=a user=7": "ada has 4", "account=b user=8": "eve has 2"}
    state = seeing(lambda manager: replace(CLUSTER, unshared=unshared) if manager == "slurm" else None)
    state._observe("slurm")
    shown = state.status()["clusters"]["slurm"]["unshared"]
    assert shown == {"partition=p": "p is so", "user=": "2 users have limits of their own"}
    assert state.snapshot.clusters["slurm"].unshared == unshared


def test_a_cluster_is_unknown_until_it_was_seen() -> None:
    """And is there from then on."""
    state = seeing(observe_one)
    assert state.snapshot.clusters == {}
    state._observe("slurm")
    assert state.snapshot.clusters == {"slurm": CLUSTER}


def test_each_refresh_makes_a_new_snapshot_even_where_nothing_changed() -> None:
    """So that a site's plugin which looks at more than it is given is at most one refresh behind."""
    state = seeing(observe_one)
    state._observe("slurm")
    first = state.snapshot
    state._publish()
    assert state.snapshot is first
    state._observe("slurm")
    assert state.snapshot is not first


def test_who_runs_there_is_part_of_what_is_seen() -> None:
    """And what was ruled without knowing of them holds no more."""
    state = seeing(observe_one)
    state._observe("slurm")
    first = state.snapshot
    need = samples.need(samples.gpus()[0])
    there = Neighbour(nodes=("n1",), share_percent=50, thread_percent=50, need=need, workload=Workload())
    state.set_neighbours("slurm", (there,))
    second = state.snapshot
    assert (second is first, second.clusters["slurm"].neighbours) == (False, (there,))
    state.set_neighbours("slurm", (replace(there),))
    state._publish()
    assert state.snapshot is second


def test_a_manager_may_tell_neighbours_of_its_own() -> None:
    """Beside those that carry marks, if it has both."""
    need = samples.need(samples.gpus()[0])
    own, marked = (
        Neighbour(nodes=(node,), share_percent=50, thread_percent=50, need=need, workload=Workload())
        for node in ("n1", "n2")
    )
    state = seeing(lambda manager: replace(CLUSTER, manager=manager, neighbours=(own,)))
    state._observe("slurm")
    assert state.snapshot.clusters["slurm"].neighbours == (own,)
    state.set_neighbours("slurm", (marked,))
    assert state.snapshot.clusters["slurm"].neighbours == (own, marked)


def test_a_cluster_not_seen_for_too_long_is_not_used() -> None:
    """Here at once."""
    state = seeing(observe_one, stale_after_s=0)
    state._observe("slurm")
    time.sleep(0.01)
    state._publish()
    assert state.snapshot.clusters == {}
    assert state.snapshot.troubles == {"slurm": "gpusaged has not observed slurm for too long"}


def test_setting_the_clock_back_or_forth_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages are measured on the monotonic clock: a day back, then ten years forth."""
    state = seeing(observe_one)
    state._observe("slurm")
    now_s = time.time()
    jumps = itertools.cycle([now_s - 86400, now_s + 3e8])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    for _ in range(4):
        state._publish()
        assert state.snapshot.clusters == {"slurm": CLUSTER}


def test_a_manager_that_fails_leaves_what_was_seen_before() -> None:
    """Whatever it raises."""
    answers: list[Cluster] = [CLUSTER]
    state = seeing(lambda manager: answers.pop() if manager == "slurm" else None)
    state._observe("slurm")
    state._observe("slurm")
    assert state.snapshot.clusters == {"slurm": CLUSTER}
    assert "Plugin 'site', hook 'observe_cluster'" in state._errors["slurm"]
    assert "IndexError: pop from empty list" in state._errors["slurm"]


def test_a_flood_of_failures_makes_nobody_elses_forgotten_and_one_that_is_known_costs_nothing() -> None:
    state = seeing(observe_one)
    victims = JobIdentity(user="1", job_name="train", fingerprint="a")
    state.add_failure(victims)
    for number in range(3000):
        state.add_failure(JobIdentity(user="2", job_name=str(number), fingerprint=f"{number:x}"))
    failures = state.snapshot.advisor.learned.failures
    assert failures["a"] >= {("1", "name", "train")}
    assert len(failures) <= FAILURES_PER_USER_LIMIT + 1
    before = state.snapshot
    state.add_failure(victims)
    assert state.snapshot is before


def test_the_newest_failures_of_many_users_are_remembered() -> None:
    state = seeing(observe_one)
    for number in range(FAILURES_LIMIT + 10):
        state.add_failure(JobIdentity(user=str(number), fingerprint=str(number)))
    assert [*state.snapshot.advisor.learned.failures] == [str(number) for number in range(10, FAILURES_LIMIT + 10)]


def test_the_kill_switch_is_any_file_and_no_path_is_none(tmp_path: Path) -> None:
    """A folder, a dangling link, an empty file; a path below a file cannot be one."""
    assert kill_reason("") is None
    assert kill_reason(str(tmp_path / "off")) is None
    (tmp_path / "off").touch()
    assert kill_reason(str(tmp_path / "off")) == f"the kill switch is on ({tmp_path}/off)"
    assert kill_reason(str(tmp_path)) is not None
    (tmp_path / "link").symlink_to("/nowhere")
    assert kill_reason(str(tmp_path / "link")) is not None
    assert kill_reason(str(tmp_path / "off" / "x")) is None


def test_a_kill_switch_that_nobody_can_look_at_is_on(tmp_path: Path) -> None:
    """Better no rewrite than one that somebody wanted to stop; here the name is longer than any file system takes."""
    reason = kill_reason(str(tmp_path / ("x" * 300)))
    assert reason is not None
    assert "cannot be read" in reason


def test_a_configuration_is_read_when_two_looks_find_it_the_same(tmp_path: Path) -> None:
    """Half a file is a valid one, of defaults: the first look may see an editor at work."""
    path = tmp_path / "gpusage.toml"
    path.write_text("mode = 'enforce'")
    state = State(load_configuration(path), make_advisor(), managers={}, path=path)
    state.start()
    state.stop()
    path.write_text("")
    state.refresh()
    assert state.snapshot.configuration.mode == "enforce"
    path.write_text("mode = 'advise'")
    state.refresh()
    assert state.snapshot.configuration.mode == "enforce"
    state.refresh()
    assert state.snapshot.configuration.mode == "advise"


def test_a_calibration_that_hangs_holds_up_neither_a_snapshot_nor_the_kill_switch(tmp_path: Path) -> None:
    """As on a network mount: the files are read when settings are, and by nobody else."""
    switch, read = tmp_path / "kill", threading.Event()
    configuration = replace(Configuration(), kill_switch=str(switch))
    advisor = make_advisor()
    state = State(configuration, advisor, managers={"slurm": SLURM}, path=Path("/none"))

    class Hanging(Advisor):
        """Its site's files never come."""

        def configured(self, configuration: Configuration) -> Advisor:  # noqa: ARG002 - as it is called
            read.wait()
            return self

    state._advisor = Hanging(hooks=advisor.hooks, catalogue=advisor.catalogue)
    reader = threading.Thread(target=state.refresh)
    reader.start()
    try:
        switch.touch()
        state.set_learned(NOTHING_LEARNED)
        assert state.snapshot.kill_reason == f"the kill switch is on ({switch})"
    finally:
        read.set()
        reader.join()
