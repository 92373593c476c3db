"""Gavel's own simulator beside ours, and its water filling, on claims drawn by chance.

Gavel's solvers (cvxpy with ECOS and GLPK) are no dependency of gpusage, so another Python that has them runs its code.
Each case has a process of its own, which GLPK ends where it is given an empty program.
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from gpusage_planning.simulator.max_min import Claims, MaxMin, throughput_shares
from gpusage_planning.simulator.orders import ByAge, Ordering
from gpusage_planning.simulator.policies import Slots
from gpusage_planning.simulator.rounds import simulate_ordered
from simulating.lucid import (
    GPUS_PER_NODE,
    NODE_COUNT,
    Truth,
    Whole,
    jobs_of,
    our_figures,
    paced,
    percent,
    pool_of,
    read_text,
    read_trace,
)

FILES = ("scheduler/*.py", "scheduler/policies/*.py", "scheduler/simulation_throughputs.json")
JOB_COUNT, ROUND_S, LOAD, SEED = 200, 10, 1.2, 0
MEDIAN_S, SPREAD, SHORTEST_S, LONGEST_S = 700.0, 0.8, 60.0, 6000.0
"""Of the drawn jobs' run times: a logarithmic normal distribution."""
PARTS_OF_A_STEP = 1000
"""A job does whole steps in a round of Gavel's, and is given up where its last round has fewer steps than it has GPUs.
So steps are counted in such small parts."""
SIZES = {"one GPU": (1,), "1 to 4 GPUs": (1, 1, 1, 1, 2, 4)}
"""How many GPUs a job has, drawn evenly."""
PHILLY = {"0e4a51": (100, 8, 50), "e13805": (200, 4, 50), "b436b2": (100, 2, 1)}
"""Of each trace, how many of its first jobs on one GPU there are, on how many GPUs, and by what times are divided."""


class GavelRun(NamedTuple):
    """How Gavel's simulator runs: its policy, the solver of its linear programs, and the parts that make a step."""

    policy: str
    solver: str | None = None
    parts: int = PARTS_OF_A_STEP


GAVEL_RUNS = (
    GavelRun("fifo", parts=1),
    GavelRun("fifo"),
    GavelRun("max_min_fairness", "ECOS"),
    GavelRun("max_min_fairness", "HIGHS"),
)
"""Ours has HiGHS, and no steps."""
SIMULATION = """
import json, logging, sys, types
sys.path[:0] = [sys.argv[1]]
for name in ("psutil", "matrix_completion", "runtime", "runtime.rpc"):  # for real clusters, and for unknown rates
    sys.modules[name] = types.ModuleType(name)
sys.modules["runtime.rpc"].scheduler_server = sys.modules["runtime.rpc"].scheduler_client = None
logging.disable(logging.CRITICAL)
import scheduler, utils
from job import Job
case = json.load(sys.stdin)
jobs = [
    Job(job_id=None, job_type=kind, command="", working_directory="", needs_data_dir=False, num_steps_arg="",
        total_steps=steps, duration=None, scale_factor=gpus, priority_weight=1.0, SLO=-1.0)
    for kind, steps, gpus in case["jobs"]]
started_s = {}
class Simulated(scheduler.Scheduler):
    def _schedule_jobs_on_workers(self):
        chosen = super()._schedule_jobs_on_workers()
        for combination in chosen:
            for job in combination.singletons():
                started_s.setdefault(job, self.get_current_timestamp())
        return chosen
simulated = Simulated(
    utils.get_policy(case["policy"], solver=case["solver"], seed=case["seed"]),
    throughputs_file=sys.argv[1] + "/simulation_throughputs.json",
    simulate=True, time_per_iteration=case["round_s"], minimum_time_between_allocation_resets=0)
for rates in simulated._oracle_throughputs["v100"].values():
    for other, rate in rates.items():
        rates[other] = [one * case["parts"] for one in rate] if isinstance(rate, list) else rate * case["parts"]
simulated.simulate({"v100": case["gpus"]}, case["submit_s"], jobs, num_gpus_per_server={"v100": case["per_node"]})
times_s = simulated._job_completion_times
print("seconds", json.dumps([[started_s[job], times_s[job]] for job in sorted(times_s)]))
"""
INSTANCES = 60
EQUAL = 1e-3
PROGRAM = """
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/policies"]
from job_id_pair import JobIdPair
from max_min_fairness_water_filling import MaxMinFairnessWaterFillingPolicyWithPerf
claims = json.load(sys.stdin)
jobs = [JobIdPair(number, None) for number in range(len(claims["users"]))]
types = [str(number) for number in range(len(claims["counts"]))]
users = sorted(set(claims["users"]))
policy = MaxMinFairnessWaterFillingPolicyWithPerf({user: "fairness" for user in users})
levels, _ = policy.get_allocation(
    {job: dict(zip(types, speeds)) for job, speeds in zip(jobs, claims["speeds"])},
    dict(zip(jobs, claims["gpus"])), {job: 1.0 for job in jobs}, dict(zip(types, claims["counts"])),
    entity_weights={user: 1.0 for user in users},
    entity_to_job_mapping={user: [job for job, own in zip(jobs, claims["users"]) if own == user] for user in users},
    return_effective_throughputs=True)
print("levels", json.dumps([float(level) for level in levels]))
"""


def draw_claims(seed: int) -> dict[str, Any]:
    """Return some jobs of some users, and how many GPUs of each type there are."""
    generator = np.random.default_rng(seed)
    users = int(generator.integers(2, 5))
    jobs, types = int(generator.integers(users, 14)), int(generator.integers(1, 4))
    return {
        "counts": generator.integers(2, 9, size=types).tolist(),
        "users": [*range(users), *generator.integers(users, size=jobs - users).tolist()],
        "gpus": generator.choice([1, 1, 2], size=jobs).tolist(),
        "speeds": generator.choice([1.0, 1.5, 2.0, 3.0], size=(jobs, types)).tolist(),
    }


def gavel_levels(python: Path, folder: Path, claims: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return each job's throughput over its usual one by Gavel's policy, ``None`` where its process ended early."""
    command = [str(python), "-W", "ignore", "-c", PROGRAM, str(folder)]
    output = subprocess.run(command, input=json.dumps(claims), capture_output=True, text=True, check=False).stdout
    lines = [line.removeprefix("levels ") for line in output.splitlines() if line.startswith("levels ")]
    return np.array(json.loads(lines[0])) if lines else None


def our_levels(claims: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the same by ours."""
    speeds, counts = np.array(claims["speeds"]), np.array(claims["counts"])
    parts = throughput_shares(
        Claims(
            users=np.array(claims["users"], dtype=np.int32),
            jobs=np.ones(len(claims["users"]), dtype=np.int32),
            gpus=np.array(claims["gpus"], dtype=float),
            speeds=speeds,
        ),
        claims["counts"],
    )
    levels: np.ndarray[Any, np.dtype[np.float64]] = (parts * speeds).sum(axis=1) / (speeds @ counts / counts.sum())
    return levels


class Case(NamedTuple):
    """Jobs that have GPUs of one type."""

    submit_s: Whole
    work_s: Whole
    gpus: Whole
    kinds: list[str]
    gpu_count: int


class Times(NamedTuple):
    """Mean JCT, mean wait for the first start, and makespan."""

    jct_s: float
    wait_s: float
    makespan_s: float


def read_rates(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the steps in a second of each type of jobs on so many GPUs, alone (null) and beside each other type."""
    table = json.loads((folder / "simulation_throughputs.json").read_text())["v100"]
    return {ast.literal_eval(name): rates for name, rates in table.items()}


def gavel_times(python: Path, folder: Path, case: Case, run: GavelRun) -> Times:
    """Return the figures of Gavel's simulator."""
    rates = read_rates(folder)
    jobs = [
        (kind, round(seconds * rates[kind, count]["null"] * run.parts), count)
        for kind, seconds, count in zip(case.kinds, case.work_s.tolist(), case.gpus.tolist(), strict=True)
    ]
    values = {
        **run._asdict(), "jobs": jobs, "submit_s": case.submit_s.tolist(), "gpus": case.gpu_count,
        "per_node": min(case.gpu_count, GPUS_PER_NODE), "round_s": ROUND_S, "seed": SEED,
    }  # fmt: skip
    output = subprocess.run(
        [str(python), "-W", "ignore", "-c", SIMULATION, str(folder)],
        input=json.dumps(values), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    (line,) = (line for line in output.splitlines() if line.startswith("seconds "))
    started_s, times_s = np.array(json.loads(line.removeprefix("seconds "))).T
    makespan_s = (case.submit_s + times_s).max() - case.submit_s[0]
    return Times(float(times_s.mean()), float((started_s - case.submit_s).mean()), float(makespan_s))


def draw_jobs(sizes: Sequence[int], rates: dict[tuple[str, int], dict[str, Any]]) -> Case:
    """Return jobs with these numbers of GPUs, drawn evenly, of types of which Gavel has rates on each number."""
    generator = np.random.default_rng(SEED)
    kinds = sorted({kind for kind, _ in rates if all((kind, size) in rates for size in sizes)})
    gpus = generator.choice(sizes, size=JOB_COUNT)
    unbounded_s = MEDIAN_S * np.exp(SPREAD * generator.standard_normal(JOB_COUNT))
    work_s = unbounded_s.clip(SHORTEST_S, LONGEST_S).astype(np.int64)
    gap_s = float(work_s @ gpus) / JOB_COUNT / (NODE_COUNT * GPUS_PER_NODE * LOAD)
    submit_s = np.cumsum(generator.exponential(gap_s, size=JOB_COUNT)).astype(np.int64)
    drawn = [str(kind) for kind in generator.choice(kinds, size=JOB_COUNT)]
    return Case(submit_s - submit_s[0], work_s, gpus, drawn, NODE_COUNT * GPUS_PER_NODE)


def compare_fifo(folder: Path, python: Path) -> None:
    """Print mean JCT and makespan of Gavel's simulator in rounds, and how far ours are from them, in one pool."""
    print(f"{JOB_COUNT} jobs on {NODE_COUNT * GPUS_PER_NODE} GPUs, fifo, rounds of {ROUND_S} s in Gavel's simulator")
    for name, sizes in SIZES.items():
        case = draw_jobs(sizes, read_rates(folder))
        theirs = gavel_times(python, folder, case, GavelRun("fifo"))
        ours = our_figures(ByAge(name="fifo", backfill="none"), None, case.submit_s, case.work_s, case.gpus)
        print(
            f"jobs on {name}: Gavel's mean JCT {theirs.jct_s:.0f} s, ours {percent(ours.jct_s, theirs.jct_s)}; "
            f"makespan {theirs.makespan_s:.0f} s, ours {percent(ours.makespan_s, theirs.makespan_s)}"
        )


def our_times(case: Case, policy_name: str) -> Times:
    """Return the figures of our simulator with the order that stands for Gavel's policy."""
    fleet, jobs = pool_of(case.gpu_count), jobs_of(case.submit_s, case.work_s, case.gpus)
    order = ByAge(name="fifo", backfill="none") if policy_name == "fifo" else MaxMin(period_s=ROUND_S)
    ordering = Ordering(order=order, predicted_s=jobs.work_s, preemption_s=0.0)
    figures = simulate_ordered(jobs, fleet, Slots(fleet=fleet), Truth(), ordering).figures
    return Times(figures.jct_s, figures.wait_s, figures.makespan_s)


def compare_on_philly(gavel: Path, folder: Path, python: Path) -> None:
    """Print how far ours are from Gavel's simulator on Philly's jobs that have one GPU."""
    titles = ("Gavel's JCT s", "ours", "apart", "wait s", "ours", "apart", "makespan")
    table = Table("trace", "jobs", "pace", "policy", "steps", *titles, box=None)
    for trace, (job_count, gpu_count, pace) in PHILLY.items():
        chosen = [job for job in read_trace(gavel, trace) if job.gpu_count == 1][:job_count]
        case = Case(*paced(chosen, pace), [job.kind for job in chosen], gpu_count)
        for run in GAVEL_RUNS:
            theirs, ours = gavel_times(python, folder, case, run), our_times(case, run.policy)
            table.add_row(
                trace, f"{job_count} on {gpu_count}", str(pace), " ".join(filter(None, (run.policy, run.solver))),
                "whole" if run.parts == 1 else "",
                f"{theirs.jct_s:.0f}", f"{ours.jct_s:.0f}", percent(ours.jct_s, theirs.jct_s),
                f"{theirs.wait_s:.0f}", f"{ours.wait_s:.0f}", percent(ours.wait_s, theirs.wait_s),
                percent(ours.makespan_s, theirs.makespan_s),
            )  # fmt: skip
    print(f"Philly's jobs that have one GPU, on so many GPUs, times divided by the pace, rounds of {ROUND_S} s")
    Console(width=130).print(table)


def compare(gavel: Path, python: Path) -> None:
    """Print how far the whole simulators are apart, and in how many instances of water filling both agree."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "policies").mkdir()
        listing = ["git", "-C", str(gavel), "ls-tree", "-r", "--name-only", "HEAD", "scheduler"]
        for path in subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines():
            if any(fnmatch(path, pattern) and path.count("/") == pattern.count("/") for pattern in FILES):
                (folder / path.removeprefix("scheduler/")).write_text(read_text(gavel, path))
        compare_fifo(folder, python)
        compare_on_philly(gavel, folder, python)
        pairs = []
        for seed in range(INSTANCES):
            claims = draw_claims(seed)
            theirs = gavel_levels(python, folder, claims)
            if theirs is not None:
                pairs.append((our_levels(claims), theirs))
    apart = [float(np.abs(ours - theirs).max()) for ours, theirs in pairs]
    equal = sum(one <= EQUAL for one in apart)
    higher = sum(bool((ours >= theirs - EQUAL).all()) for ours, theirs in pairs) - equal
    print(f"{len(pairs)} of {INSTANCES} instances solved by Gavel; each job's throughput within {EQUAL:g}: {equal}")
    print(f"others: {higher} in which no job has less by ours, {len(pairs) - equal - higher} in which one has")
