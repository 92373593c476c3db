"""GPUs in nodes, worked by hand: who waits for a node, who fills which, and how much stands empty beside others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Cluster
from gpusage_planning import commands
from gpusage_planning.simulator.contract import Backfill, Jobs, Kind, UnslowedTruth
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.policies import Slots
from gpusage_planning.simulator.result import Result


def simulated(
    *jobs: tuple[float, float, int], backfill: Backfill = "reserve", per_node: int | None = 4, spreads: bool = False
) -> Result:
    """Return what becomes of jobs (submission, work, GPUs) on eight GPUs."""
    one = GpuType(name="t", gpu_count=8, gpus_per_node=per_node)
    fleet = Fleet(types=(one,), cluster=Cluster(manager="none", version="", pools=()), spreads_jobs=spreads)
    submit_s, work_s, counts = np.array(jobs).T
    trace = Jobs(
        ids=[str(number) for number in range(len(jobs))],
        submit_s=submit_s,
        work_s=work_s,
        limit_s=work_s,
        gpu_count=counts.astype(np.int32),
        kind=np.zeros(len(jobs), dtype=np.int32),
        user=np.zeros(len(jobs), dtype=np.int32),
        kinds=(Kind(name="k"),),
        users=("someone",),
    )
    return simulate(trace, fleet, Slots(fleet=fleet, backfill=backfill), UnslowedTruth())


def test_a_job_waits_for_room_on_one_node_where_a_pool_would_have_it() -> None:
    """Three GPUs of each node are taken: two are empty, but never two on one node before 100 s."""
    jobs = ((0.0, 100.0, 3), (0.0, 200.0, 3), (1.0, 10.0, 2))
    assert simulated(*jobs).start_s.tolist() == [0, 0, 100]
    assert simulated(*jobs, per_node=None).start_s.tolist() == [0, 0, 1]
    assert simulated(*jobs, spreads=True).start_s.tolist() == [0, 0, 1]


def test_a_job_larger_than_a_node_waits_for_a_whole_one_and_for_the_rest_on_another() -> None:
    """Six GPUs are a whole node and two more: one job on each node is in the way until the first has ended."""
    jobs = ((0.0, 50.0, 3), (0.0, 90.0, 2), (0.0, 10.0, 6))
    assert simulated(*jobs).start_s.tolist() == [0, 0, 50]


def test_small_jobs_fill_the_fullest_node() -> None:
    """The job on three GPUs leaves one on its node, which the small job takes; so a whole node stays for the last."""
    result = simulated((0.0, 50.0, 3), (1.0, 50.0, 1), (2.0, 10.0, 4))
    assert result.start_s.tolist() == [0, 1, 2]
    assert result.gpu.tolist() == [0, 3, 4]


def test_the_node_of_the_oldest_job_is_held_for_it() -> None:
    """The first node is free from 50 s on; a job on it that would end later starts beside the other one's instead."""
    jobs = ((0.0, 50.0, 4), (0.0, 100.0, 3), (1.0, 10.0, 4), (2.0, 80.0, 1), (3.0, 80.0, 1))
    result = simulated(*jobs)
    assert result.start_s.tolist() == [0, 0, 50, 2, 60]


def test_fragmentation_is_the_empty_time_on_nodes_in_use() -> None:
    """For 10 s, one GPU of a node is empty beside three in use, and all four of the other node are."""
    assert simulated((0.0, 10.0, 3)).figures.fragmentation == pytest.approx(1 / 5)
    assert simulated((0.0, 10.0, 3), per_node=None).figures.fragmentation is None
    assert simulated((0.0, 10.0, 8)).figures.fragmentation is None


def test_a_cluster_file_says_how_many_gpus_a_node_has(tmp_path: Path) -> None:
    """The row of the file goes before the option, and a note says so; nodes that the GPUs do not fill are refused."""
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job_id,submit_time,duration,gpu_num\na,0,100,3\nb,0,200,3\nc,1,10,2\n")

    notes: list[str] = []

    def run(pool: dict[str, int], *words: str) -> float:
        cluster = tmp_path / f"{len([*tmp_path.iterdir()])}.json"
        cluster.write_text(json.dumps({"pools": [{"site_type": "v100", "gpu_count": 8, **pool}]}))
        files = ["--jobs", str(jobs), "--cluster", str(cluster), "--policy", "slots", "--repetitions", "1", "--json"]
        result = CliRunner().invoke(commands.simulate, [*files, *words], catch_exceptions=False)
        document = json.loads(result.stdout)
        notes[:] = document["notes"]
        return float(document["policies"][0]["wait_s"])

    assert run({}) == 0
    assert run({"gpus_per_node": 8}, "--gpus-per-node", "4") == 0
    assert "Option --gpus-per-node changes nothing: the cluster's file has the nodes of all types." in notes
    assert run({"gpus_per_node": 4}) == run({}, "--gpus-per-node", "4") == pytest.approx(99 / 3)
    assert run({}, "--gpus-per-node", "4", "--spread") == 0
    assert not any("--gpus-per-node" in note for note in notes)
    with pytest.raises(RequestError, match=r"Nodes of 3 GPUs must divide the 8 GPUs of type 'v100'; got a rest of 2\."):
        run({"gpus_per_node": 3})


@pytest.mark.parametrize(
    ("nodes", "wait_s", "note"),
    [
        ("NodeName=g[1-2] Gres=gpu:v100:4", 99 / 3, None),
        ("NodeName=g[1-2] Gres=gpu:v100:2\nNodeName=g3 Gres=gpu:v100:4", 0, "2 or 4 GPUs; here each has 2."),
        ("NodeName=g1 Gres=gpu:v100:3\nNodeName=g2 Gres=gpu:v100:5", 0, "3 or 5 GPUs; here all GPUs are in one node."),
    ],
)
def test_gpus_stand_in_the_nodes_of_slurm_conf(nodes: str, wait_s: float, note: str | None, tmp_path: Path) -> None:
    """Two jobs on 3 GPUs leave one GPU on each of two nodes of 4, where a job on 2 has no room; elsewhere it has."""
    jobs, conf = tmp_path / "jobs.csv", tmp_path / "slurm.conf"
    jobs.write_text("job_id,submit_time,duration,gpu_num\na,0,100,3\nb,0,200,3\nc,1,10,2\n")
    conf.write_text(nodes + "\n")
    words = ["--jobs", str(jobs), "--cluster", str(conf), "--policy", "slots", "--repetitions", "1", "--json"]
    document = json.loads(CliRunner().invoke(commands.simulate, words, catch_exceptions=False).stdout)
    assert document["policies"][0]["wait_s"] == pytest.approx(wait_s)
    assert [each for each in document["notes"] if "Nodes of" in each] == (
        [f"Nodes of v100 have {note}"] if note else []
    )
