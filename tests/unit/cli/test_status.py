"""What `gpusage status` says of a daemon and of the clusters that it sees."""

from __future__ import annotations

from dataclasses import asdict

from gpusage.cli.status import cluster_lines, daemon_lines
from gpusage_hooks.types import Cluster, GpuPool

POOL = GpuPool(gpu=None, site_type="new", gpu_count=2, free_gpu_count=1, mps_per_gpu=100)
CLUSTER = Cluster(
    manager="pbs", version="23", pools=(POOL,), notes=("one node is away",), unshared={"partition=w": "w is so"}
)


def test_a_cluster_is_shown_by_its_managers_title() -> None:
    seen = {"clusters": {"pbs": {"age_s": 1, **asdict(CLUSTER)}}}
    assert list(cluster_lines(seen, "pbs", "PBS")) == [
        "PBS 23, seen 1 s ago:",
        "  new (not in the catalogue): 1 of 2 free, shared in 100 units, memory limited by cap",
        "  note: one node is away",
        "  not shared: w is so",
    ]


def test_a_manager_that_does_not_answer_is_shown_with_its_trouble_and_one_that_is_not_here_not_at_all() -> None:
    status = {"clusters": {}, "troubles": {"pbs": "qstat must be on the PATH"}}
    assert list(cluster_lines(status, "pbs", "PBS")) == ["PBS: qstat must be on the PATH"]
    assert list(cluster_lines(status, "lsf", "LSF")) == []


def test_a_daemon_is_shown_with_what_needs_a_person() -> None:
    lines = list(
        daemon_lines(
            {
                "version": "1",
                "kill_switch": {"on": True, "path": "/off"},
                "configuration": {"path": "/f", "error": "broken"},
                "missed": {"silent": 2, "rest": 0},
                "job_monitor": {"turned_back": 3, "stuck": ["job 7 waits"]},
            }
        )
    )
    assert "kill switch: ON (/off)" in lines
    assert "configuration: /f; not usable, the last good one is in force: broken" in lines
    assert "left unchanged: 2 not answered in time" in lines
    assert lines[-2:] == ["restored, because they could not start as a share: 3 jobs", "job 7 waits"]
