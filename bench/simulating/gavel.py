"""Gavel's own water filling beside ours, on claims that are drawn by chance: users, jobs, GPU types and speeds.

Gavel's solvers (cvxpy with ECOS and GLPK) are no dependency of gpusage, so another Python that has them runs its
policy. Each instance has a process of its own, which GLPK ends where it is given an empty program.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gpusage_lab.simulator.water_filling import Claims, throughput_shares
from simulating.lucid import read_text

FILES = (
    "policies/max_min_fairness_water_filling.py",
    "policies/policy.py",
    "policies/proportional.py",
    "job_id_pair.py",
)
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


def drawn_claims(seed: int) -> dict[str, Any]:
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


def compare(gavel: Path, python: Path) -> None:
    """Print in how many instances both agree."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "policies").mkdir()
        for path in FILES:
            (folder / path).write_text(read_text(gavel, f"scheduler/{path}"))
        pairs = []
        for seed in range(INSTANCES):
            claims = drawn_claims(seed)
            theirs = gavel_levels(python, folder, claims)
            if theirs is not None:
                pairs.append((our_levels(claims), theirs))
    apart = [float(np.abs(ours - theirs).max()) for ours, theirs in pairs]
    equal = sum(one <= EQUAL for one in apart)
    higher = sum(bool((ours >= theirs - EQUAL).all()) for ours, theirs in pairs) - equal
    print(f"{len(pairs)} of {INSTANCES} instances solved by Gavel; each job's throughput within {EQUAL:g}: {equal}")
    print(f"others: {higher} in which no job has less by ours, {len(pairs) - equal - higher} in which one has")
