"""What jobs really did, on its way into the store."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpusage.service.usage_collector import UsageCollector
from gpusage.store.decisions import StoreError
from gpusage.store.opening import open_store
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Cluster, GpuPool, Usage
from gpusage_hooks.units import DAY_S
from records import USAGE


def cluster_of(gpu_count: int) -> Cluster:
    """Return a cluster of two pools of *gpu_count* GPUs."""
    pools = (GpuPool(gpu="t4", site_type="t4", gpu_count=gpu_count, free_gpu_count=0),) * 2
    return Cluster(manager="slurm", version="1", pools=pools, name="alpha")


class Manager:
    """Hooks and snapshot of one manager, which tells the same usage until it is told otherwise."""

    def __init__(self, *usages: Usage) -> None:
        self.usages: list[Usage] | Exception = [*usages]
        self.observed_usages: list[Usage] = []
        self.clusters = {"slurm": cluster_of(7)}
        advisor = SimpleNamespace(hooks=self, context=lambda manager: manager)
        self.snapshot = SimpleNamespace(clusters=self.clusters, advisor=advisor)

    def collect_usage(self, manager: str, context: object) -> list[Usage]:
        """Tell the usage."""
        assert manager == context == "slurm"
        if isinstance(self.usages, Exception):
            raise self.usages
        return self.usages

    def usage_observed(self, usage: Usage) -> None:
        """Receive one."""
        self.observed_usages.append(usage)


def collector_of(manager: Manager, path: Path) -> UsageCollector:
    return UsageCollector(manager, open_store(f"sqlite:///{path}/d.db"))  # type: ignore[arg-type]


def stored_usages(path: Path) -> list[Usage]:
    with closing(open_store(f"sqlite:///{path}/d.db")) as store:
        return [observed.usage for observed in store.usage()]


def test_a_run_is_kept_and_heard_of_once_however_often_it_is_told(tmp_path: Path) -> None:
    manager = Manager(USAGE)
    collector = collector_of(manager, tmp_path)
    collector.run_once()
    manager.usages = [USAGE, replace(USAGE, job_id="8", ended_at_s=USAGE.ended_at_s - 1)]
    collector.run_once()
    assert [usage.job_id for usage in manager.observed_usages] == ["7", "8"]
    assert [usage.job_id for usage in stored_usages(tmp_path)] == ["7", "8"]
    assert collector.status() == {"recorded": 2, "excesses": [], "error": None}


def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    """A file stands where the store's folder should be."""
    manager = Manager(USAGE)
    (tmp_path / "a").write_text("in the way")
    collector = collector_of(manager, tmp_path / "a")
    collector.run_once()
    assert "must be opened" in collector.status()["error"]
    assert manager.observed_usages == []
    (tmp_path / "a").unlink()
    collector._store._refused = None  # type: ignore[union-attr]
    collector.run_once()
    assert collector.status() == {"recorded": 1, "excesses": [], "error": None}
    assert stored_usages(tmp_path / "a") == manager.observed_usages == [USAGE]


def test_the_name_and_the_gpus_of_a_cluster_are_noted_each_day_even_where_usage_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, now_s = Manager(), [1_700_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now_s[0])
    manager.usages = RequestError("slurmctld must answer; it did not.")
    collector, notes = collector_of(manager, tmp_path), list[tuple[object, ...]]()
    monkeypatch.setattr(collector._store, "note_cluster", lambda *note: notes.append(note))
    for _ in range(2):
        for gpu_count in (7, 7, 6):
            manager.clusters["slurm"] = cluster_of(gpu_count)
            collector.run_once()
        now_s[0] += DAY_S
    first_s = 1_700_000_000 // DAY_S * DAY_S
    assert notes == [(day_s, "slurm", "alpha", 2 * each) for day_s in (first_s, first_s + DAY_S) for each in (7, 6)]


def test_usage_is_recorded_where_the_cluster_cannot_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(USAGE)
    collector = collector_of(manager, tmp_path)

    def refuse(*_: object) -> None:
        raise StoreError("The database is locked.")

    monkeypatch.setattr(collector._store, "note_cluster", refuse)
    collector.run_once()
    assert collector.status() == {"recorded": 1, "excesses": [], "error": None}
    assert stored_usages(tmp_path) == [USAGE]


def test_a_manager_that_is_away_is_one_sentence(tmp_path: Path) -> None:
    manager = Manager()
    manager.usages = RequestError("slurmctld must answer; it did not.")
    collector = collector_of(manager, tmp_path)
    collector.run_once()
    assert collector.status() == {"recorded": 0, "excesses": [], "error": "slurmctld must answer; it did not."}


def test_a_run_above_its_part_is_told_without_its_user_as_long_as_its_node_reports_it(tmp_path: Path) -> None:
    """Two processes, each of which the cap of MPS holds alone; everybody may ask for the status."""
    manager = Manager(replace(USAGE, memory_bytes=10 * 2**30), replace(USAGE, job_id="8"))
    collector = collector_of(manager, tmp_path)
    for _ in range(2):
        collector.run_once()
        (excess,) = collector.status()["excesses"]
        assert excess == (
            "slurm job 7: its processes together took 10.0 GiB, more than its part of the GPU's memory (6.0 GiB)"
        )
    manager.usages = []
    collector.run_once()
    assert collector.status()["excesses"] == []
