"""Gavel's own simulator beside ours, first come first served; and its water filling, on claims drawn by chance.

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
from typing import Any

import numpy as np

from gpusage_lab.simulator.orders import ByAge
from gpusage_lab.simulator.water_filling import Claims, throughput_shares
from simulating.lucid import GPUS_PER_NODE, NODE_COUNT, Figures, Whole, our_figures, read_text

FILES = ("scheduler/*.py", "scheduler/policies/*.py", "scheduler/simulation_throughputs.json")
JOB_COUNT, ROUND_S, LOAD = 200, 10, 1.2
MEDIAN_S, SPREAD, SHORTEST_S, LONGEST_S = 700.0, 0.8, 60.0, 6000.0
"""Of the drawn jobs' run times: a logarithmic normal distribution."""
PARTS_OF_A_STEP = 1000
"""Gavel gives a job up whose last round has fewer steps than GPUs, so its steps are counted in such small parts."""
SIZES = {"one GPU": (1,), "1 to 4 GPUs": (1, 1, 1, 1, 2, 4)}
"""How many GPUs a job has, drawn evenly."""
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
simulated = scheduler.Scheduler(
    utils.get_policy("fifo", solver="ECOS", seed=0), throughputs_file=sys.argv[1] + "/simulation_throughputs.json",
    simulate=True, time_per_iteration=case["round_s"], minimum_time_between_allocation_resets=0)
simulated.simulate({"v100": case["gpus"]}, case["submit_s"], jobs, num_gpus_per_server={"v100": case["per_node"]})
times = simulated._job_completion_times
print("seconds", json.dumps([times[job] for job in sorted(times)]))
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


def draw_jobs(sizes: Sequence[int], rates: dict[tuple[str, int], float]) -> tuple[Whole, Whole, Whole, list[str]]:
    """Return when jobs are submitted, how long they run, their GPUs, and each one's type, of which Gavel has rates."""
    generator = np.random.default_rng(0)
    kinds = sorted({kind for kind, _ in rates if all(rates.get((kind, size), 0.0) > 0 for size in sizes)})
    gpus = generator.choice(sizes, size=JOB_COUNT)
    unbounded_s = MEDIAN_S * np.exp(SPREAD * generator.standard_normal(JOB_COUNT))
    work_s = unbounded_s.clip(SHORTEST_S, LONGEST_S).astype(np.int64)
    gap_s = float(work_s @ gpus) / JOB_COUNT / (NODE_COUNT * GPUS_PER_NODE * LOAD)
    submit_s = np.cumsum(generator.exponential(gap_s, size=JOB_COUNT)).astype(np.int64)
    return submit_s - submit_s[0], work_s, gpus, [str(kind) for kind in generator.choice(kinds, size=JOB_COUNT)]


def compare_fifo(folder: Path, python: Path) -> None:
    """Print mean JCT and makespan of Gavel's simulator in rounds, and how far ours are from them, in one pool."""
    path = folder / "simulation_throughputs.json"
    table = json.loads(path.read_text())["v100"]
    rates = {ast.literal_eval(name): rate["null"] * PARTS_OF_A_STEP for name, rate in table.items()}
    path.write_text(json.dumps({"v100": {str(job_type): {"null": rate} for job_type, rate in rates.items()}}))
    print(f"{JOB_COUNT} jobs on {NODE_COUNT * GPUS_PER_NODE} GPUs, fifo, rounds of {ROUND_S} s in Gavel's simulator")
    for name, sizes in SIZES.items():
        submit_s, work_s, gpus, kinds = draw_jobs(sizes, rates)
        jobs = [
            (kind, round(seconds * rates[kind, count]), count)
            for kind, seconds, count in zip(kinds, work_s.tolist(), gpus.tolist(), strict=True)
        ]
        case = {"jobs": jobs, "submit_s": submit_s.tolist(), "round_s": ROUND_S, "gpus": NODE_COUNT * GPUS_PER_NODE}
        output = subprocess.run(
            [str(python), "-W", "ignore", "-c", SIMULATION, str(folder)],
            input=json.dumps({**case, "per_node": GPUS_PER_NODE}), capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        (line,) = (line for line in output.splitlines() if line.startswith("seconds "))
        times_s = np.array(json.loads(line.removeprefix("seconds ")))
        theirs = Figures(float(times_s.mean()), float((submit_s + times_s).max()), 0)
        ours = our_figures(ByAge(name="fifo", backfill="none"), None, submit_s, work_s, gpus)
        print(
            f"jobs on {name}: Gavel's mean JCT {theirs.jct_s:.0f} s, ours {100 * (ours.jct_s / theirs.jct_s - 1):+.2f} "
            f"%; makespan {theirs.makespan_s:.0f} s, ours {100 * (ours.makespan_s / theirs.makespan_s - 1):+.2f} %"
        )


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
