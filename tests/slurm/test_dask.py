"""Simulations on workers that dask-jobqueue starts as jobs of a real Slurm, as lab/docs/simulator.md has it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from click.testing import CliRunner
from dask_jobqueue import SLURMCluster
from distributed import Client

from gpusage_planning import commands
from gpusage_sandboxes.slurm import ClusterPlan, parse_nodes, start_sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.one_release]

OPTIONS = ("--generate", "100", "--policy", "slots", "--policy", "packing", "--repetitions", "2", "--json")


def simulated(*options: str) -> Any:  # JSON
    result = CliRunner().invoke(commands.simulate, [*OPTIONS, *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_workers_that_are_jobs_of_slurm_say_the_same(
    slurm_release: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2")), release=slurm_release) as sandbox:
        for name, value in sandbox.environment.items():
            monkeypatch.setenv(name, value)
        with SLURMCluster(
            cores=1, memory="1GB", walltime="00:05:00", python=sys.executable, log_directory=sandbox.layout.jobs,
            scheduler_options={"dashboard_address": None},
        ) as cluster:  # fmt: skip
            cluster.scale(jobs=2)
            with Client(cluster) as client:
                client.wait_for_workers(2, timeout=120)
                assert simulated("--dask", cluster.scheduler_address) == simulated()
                executed = client.run(lambda dask_worker: dask_worker.state.executed_count)
            assert len(executed) == 2
            assert all(executed.values()), "both workers work"
            assert sandbox.run("squeue", "-h", "-o", "%j").stdout.split() == ["dask-worker"] * 2
