"""Philly's jobs as Gavel's repository has them, in Lucid's own simulator and in ours: FIFO on 8 nodes of 8 GPUs.

Both repositories are read where they were cloned (`git show`), and nothing of them is kept. Lucid's simulator goes
second by second, so times are divided by `PACE`.
"""

from __future__ import annotations

import ast
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusage_hooks.types import Cluster
from gpusage_lab.simulator.contract import Colocation, Tenant
from gpusage_lab.simulator.engine import simulate
from gpusage_lab.simulator.fleet import Fleet, GpuType
from gpusage_lab.simulator.jobs import Jobs, Kind
from gpusage_lab.simulator.policies import Slots

TRACES = ("0e4a51", "b436b2", "e13805")
JOB_COUNT, NODE_COUNT, GPUS_PER_NODE = 600, 8, 8
PACE = 50
Whole = npt.NDArray[np.int64]


class Truth:
    """Every job runs as long as the trace says."""

    def speed(self, _: int, __: int, /) -> float:
        """Return the same for all."""
        return 1.0

    def memory_bytes(self, _: int, __: int, /) -> float:
        """Return nothing."""
        return 0.0

    def colocation_of(self, tenants: Sequence[Tenant], _: int, /) -> Colocation:
        """Return that nobody is slowed."""
        return Colocation((1.0,) * len(tenants), 1.0)


def read_text(repository: Path, path: str) -> str:
    """Return a file of the newest commit of *repository*, a clone with or without a work tree."""
    command = ["git", "-C", str(repository), "show", f"HEAD:{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def read_jobs(gavel: Path, trace: str) -> tuple[Whole, Whole, Whole]:
    """Return submission, duration and GPUs of the trace's first jobs, in seconds; steps at the speed of one V100."""
    rates = json.loads(read_text(gavel, "scheduler/simulation_throughputs.json"))["v100"]
    steps_per_s = {ast.literal_eval(name): rate["null"] for name, rate in rates.items()}
    lines = read_text(gavel, f"scheduler/traces/msr/seed=0/{trace}.trace").splitlines()[:JOB_COUNT]
    rows = [line.split("\t") for line in lines]
    submit_s = np.array([float(row[-2]) for row in rows]) / PACE
    work_s = np.array([int(row[-3]) / steps_per_s[row[0], 1] for row in rows]) / PACE
    gpus = np.array([int(row[-1]) for row in rows])
    return submit_s.astype(np.int64), np.maximum(work_s.round(), 1).astype(np.int64), gpus


def lucid_figures(lucid: Path, submit_s: Whole, work_s: Whole, gpus: Whole) -> tuple[float, float, float]:
    """Return mean JCT, mean wait and makespan of Lucid's FIFO with its consolidating placer, in seconds."""
    with TemporaryDirectory() as folder:
        listing = ["git", "-C", str(lucid), "ls-tree", "-r", "--name-only", "HEAD", "simulation/policy"]
        paths = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
        for path in (*paths, "simulation/cluster.py", "simulation/job.py"):
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(read_text(lucid, path))
        sys.path.insert(0, str(Path(folder) / "simulation"))
        import cluster  # type: ignore[import-not-found]
        import job as jobs  # type: ignore[import-not-found]
        import pandas as pd  # type: ignore[import-untyped]
        import policy  # type: ignore[import-not-found]

        trace, never = jobs.Trace(), sys.maxsize
        for number, (submit, work, count) in enumerate(
            zip(submit_s.tolist(), work_s.tolist(), gpus.tolist(), strict=True)
        ):
            trace.append_job(jobs.Job(pd.Series({
                "job_id": number, "vc": "vc", "gpu_num": count, "submit_time": submit, "duration": work, "remain": work,
                "start_time": never, "end_time": never, "ckpt_times": 0, "queue": 0, "gpu_util": 0, "gmem": 0,
            })))  # fmt: skip
        nodes = cluster.Cluster({"vc": NODE_COUNT}, GPUS_PER_NODE, 96).vc_list[0]
        fifo: Any = policy.FirstInFirstOut(trace, nodes, "consolidate", folder, logging.getLogger(), 0)
        fifo.seq_recorder = fifo.runtime_log = lambda: None
        fifo.log_recorder = lambda _: None
        fifo.simulate()
        ends = np.array([one["end_time"] for one in fifo.trace.job_list])
        submitted = np.array([one["submit_time"] for one in fifo.trace.job_list])
        waits = np.array([one["queue"] for one in fifo.trace.job_list])
    return float((ends - submitted).mean()), float(waits.mean()), float(ends.max() - submitted.min())


def our_figures(submit_s: Whole, work_s: Whole, gpus: Whole, per_node: int | None) -> tuple[float, float, float]:
    """Return the same of our FIFO on whole GPUs."""
    gpu_type = GpuType(name="v100", gpu_count=NODE_COUNT * GPUS_PER_NODE, gpus_per_node=per_node)
    fleet = Fleet(types=(gpu_type,), cluster=Cluster(manager="none", version="", pools=()))
    jobs = Jobs(
        ids=[str(number) for number in range(len(gpus))],
        submit_s=submit_s.astype(float),
        work_s=work_s.astype(float),
        limit_s=work_s.astype(float),
        gpu_count=gpus.astype(np.int32),
        kind=np.zeros(len(gpus), dtype=np.int32),
        user=np.zeros(len(gpus), dtype=np.int32),
        kinds=(Kind(name="job"),),
        users=("someone",),
    )
    figures = simulate(jobs, fleet, Slots(fleet=fleet, backfill="none"), Truth()).figures
    return figures.jct_s, figures.wait_s, figures.makespan_s


def compare(folder: Path) -> None:
    """Print the figures of each trace, from the clones in *folder*."""
    gavel, lucid = (_clone(folder, name) for name in ("gavel", "Lucid"))
    print(f"FIFO, {JOB_COUNT} jobs on {NODE_COUNT} nodes of {GPUS_PER_NODE} GPUs, times divided by {PACE}")
    for trace in TRACES:
        jobs = read_jobs(gavel, trace)
        theirs = lucid_figures(lucid, *jobs)
        for name, per_node in (("in nodes", GPUS_PER_NODE), ("in one pool", None)):
            off = [
                f"{100 * (own / other - 1):+.2f} %"
                for own, other in zip(our_figures(*jobs, per_node), theirs, strict=True)
            ]
            print(f"{trace} {name:11}: JCT {off[0]}, wait {off[1]}, makespan {off[2]} from Lucid's simulator")


def _clone(folder: Path, name: str) -> Path:
    clone = next(folder.glob(f"*{name}"))
    return clone / "repo" if (clone / "repo").is_dir() else clone
