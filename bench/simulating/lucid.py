"""Philly's jobs as Gavel's repository has them, in Lucid's own simulator and in ours, on 8 nodes of 8 GPUs.

Both repositories are read where they were cloned (`git show`), and nothing of them is kept. Lucid's simulator goes
second by second, so times are divided by `PACE`.
"""

from __future__ import annotations

import ast
import json
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from gpusage_hooks.types import Cluster
from gpusage_planning.simulator.contract import Jobs, Kind, UnslowedTruth
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.orders import (
    ByAge,
    LeastAttainedService,
    Order,
    Ordering,
    ShortestJob,
    ShortestRemainingTime,
)
from gpusage_planning.simulator.policies import Slots
from gpusage_planning.simulator.rounds import simulate_ordered

TRACES = ("0e4a51", "b436b2", "e13805")
JOB_COUNT, NODE_COUNT, GPUS_PER_NODE = 600, 8, 8
PACE = 50
LUCID_PREEMPTION_S = 40.0
"""Of jobs on up to 8 GPUs, simulation/policy/policy.py; Lucid counts 60 s for larger ones, which ours do not."""
ORDERS: Mapping[str, Order] = {
    "FirstInFirstOut": ByAge(name="fifo", backfill="none"),
    "ShortestJobFirst": ShortestJob(),
    "ShortestRemainingTimeFirst": ShortestRemainingTime(),
    "Tiresias": LeastAttainedService(),
}
"""Lucid's policies, each with our order."""
Whole = npt.NDArray[np.int64]


class Figures(NamedTuple):
    """What is compared: mean JCT, makespan, and how often a job was suspended."""

    jct_s: float
    makespan_s: float
    preemptions: int


def read_text(repository: Path, path: str) -> str:
    """Return a file of the newest commit of *repository*, a clone with or without a work tree."""
    command = ["git", "-C", str(repository), "show", f"HEAD:{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class TraceJob(NamedTuple):
    """A line of a trace in Gavel's repository.

    Attributes:
        work_s: What its steps take at the speed of one V100.
    """

    kind: str
    work_s: float
    submit_s: float
    gpu_count: int


def read_trace(gavel: Path, trace: str) -> list[TraceJob]:
    """Return all jobs of a trace."""
    rates = json.loads(read_text(gavel, "scheduler/simulation_throughputs.json"))["v100"]
    steps_per_s = {ast.literal_eval(name): rate["null"] for name, rate in rates.items()}
    rows = (line.split("\t") for line in read_text(gavel, f"scheduler/traces/msr/seed=0/{trace}.trace").splitlines())
    return [TraceJob(row[0], int(row[-3]) / steps_per_s[row[0], 1], float(row[-2]), int(row[-1])) for row in rows]


def paced(jobs: Sequence[TraceJob], pace: float) -> tuple[Whole, Whole, Whole]:
    """Return submission, duration and GPUs of *jobs*, in seconds that are divided by *pace*."""
    submit_s = np.array([job.submit_s for job in jobs]) / pace
    work_s = np.array([job.work_s for job in jobs]) / pace
    gpus = np.array([job.gpu_count for job in jobs])
    return submit_s.astype(np.int64), np.maximum(work_s.round(), 1).astype(np.int64), gpus


def lucid_figures(lucid: Path, policy_name: str, submit_s: Whole, work_s: Whole, gpus: Whole) -> Figures:
    """Return the figures of one of Lucid's policies with its consolidating placer."""
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
        simulated: Any = getattr(policy, policy_name)(trace, nodes, "consolidate", folder, logging.getLogger(), 0)
        simulated.seq_recorder = simulated.runtime_log = lambda: None
        simulated.log_recorder = lambda _: None
        simulated.simulate()
        ends = np.array([one["end_time"] for one in simulated.trace.job_list])
        submitted = np.array([one["submit_time"] for one in simulated.trace.job_list])
        preemptions = sum(one["ckpt_times"] for one in simulated.trace.job_list)
    return Figures(float((ends - submitted).mean()), float(ends.max() - submitted.min()), preemptions)


def pool_of(gpu_count: int, per_node: int | None = None) -> Fleet:
    """Return GPUs of one type, in one pool or in nodes."""
    gpu_type = GpuType(name="v100", gpu_count=gpu_count, gpus_per_node=per_node)
    return Fleet(types=(gpu_type,), cluster=Cluster(manager="none", version="", pools=()))


def jobs_of(submit_s: Whole, work_s: Whole, gpus: Whole) -> Jobs:
    """Return jobs of one kind and a user each, whose time limit is what they take."""
    return Jobs(
        ids=[str(number) for number in range(len(gpus))],
        submit_s=submit_s.astype(float),
        work_s=work_s.astype(float),
        limit_s=work_s.astype(float),
        gpu_count=gpus.astype(np.int32),
        kind=np.zeros(len(gpus), dtype=np.int32),
        user=np.arange(len(gpus), dtype=np.int32),
        kinds=(Kind(name="job"),),
        users=tuple(f"user {number}" for number in range(len(gpus))),
    )


def our_figures(order: Order, per_node: int | None, submit_s: Whole, work_s: Whole, gpus: Whole) -> Figures:
    """Return the same of whole GPUs in our order, which knows how long each job runs."""
    fleet, jobs = pool_of(NODE_COUNT * GPUS_PER_NODE, per_node), jobs_of(submit_s, work_s, gpus)
    ordering = Ordering(order=order, predicted_s=jobs.work_s, preemption_s=LUCID_PREEMPTION_S)
    figures = simulate_ordered(jobs, fleet, Slots(fleet=fleet), UnslowedTruth(), ordering).figures
    return Figures(figures.jct_s, figures.makespan_s, figures.preemptions)


def compare(folder: Path) -> None:
    """Print the figures of each trace, from the clones in *folder*."""
    gavel, lucid = (clone(folder, name) for name in ("gavel", "Lucid"))
    titles = ("Lucid's JCT s", "ours", "apart", "makespan apart", "JCT apart in one pool", "preemptions", "ours")
    table = Table("trace", "order", *titles, box=None)
    for trace in TRACES:
        jobs = paced(read_trace(gavel, trace)[:JOB_COUNT], PACE)
        for policy_name, order in ORDERS.items():
            theirs = lucid_figures(lucid, policy_name, *jobs)
            ours, pooled = (our_figures(order, per_node, *jobs) for per_node in (GPUS_PER_NODE, None))
            table.add_row(
                trace, order.name, f"{theirs.jct_s:.0f}", f"{ours.jct_s:.0f}", percent(ours.jct_s, theirs.jct_s),
                percent(ours.makespan_s, theirs.makespan_s), percent(pooled.jct_s, theirs.jct_s),
                str(theirs.preemptions), str(ours.preemptions),
            )  # fmt: skip
    print(f"{JOB_COUNT} jobs on {NODE_COUNT} nodes of {GPUS_PER_NODE} GPUs, times divided by {PACE}")
    Console(width=120).print(table)


def percent(ours: float, theirs: float) -> str:
    """Return how far *ours* is from *theirs*."""
    return f"{100 * (ours / theirs - 1):+.2f} %"


def clone(folder: Path, name: str) -> Path:
    """Return the repository *name* in *folder*, with or without a work tree."""
    path = next(folder.glob(f"*{name}"))
    return path / "repo" if (path / "repo").is_dir() else path
