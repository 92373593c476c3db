"""A real Slurm with priority/multifactor starts jobs in the order in which the simulator starts them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gpusage.boundary.operating_system import user_name
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from multifactor import GPUS, QUEUES, simulated
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]

CPUS_PER_GPU = 16
PASSES_S = 3.0
"""Slurm looks at the whole queue each second: what could start has started then."""
PRIORITY = (
    "PriorityType=priority/multifactor",
    "PriorityFlags=NO_FAIR_TREE",
    "PriorityWeightAge=1000",
    "PriorityWeightFairshare=10000",
    "PriorityWeightJobSize=1000",
    "PriorityMaxAge=14-0",
    "PriorityDecayHalfLife=14-0",
    "PriorityCalcPeriod=1",
)
"""Those of the order `multifactor`, but priorities are computed each minute: usage counts only from then on."""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with books, on which each user of the queues has an account."""
    plan = ClusterPlan(nodes=parse_nodes(f"1xv100:{GPUS}"), accounting=True, settings=PRIORITY)
    with start_sandbox(plan, release=slurm_release) as sandbox:
        for user in sorted({job.name[0] for jobs, _ in QUEUES.values() for job in jobs}):
            sandbox.run("sacctmgr", "-i", "add", "account", user)
            sandbox.run("sacctmgr", "-i", "add", "user", user_name(), f"account={user}")
        yield sandbox


@pytest.mark.parametrize("name", QUEUES)
def test_jobs_start_in_the_simulator_s_order(sandbox: Sandbox, name: str) -> None:
    """Jobs come and end in the simulated order, each once Slurm has had time for the event before."""
    jobs, order = QUEUES[name]
    result = simulated(jobs)
    folder = sandbox.layout.folder / jobs[0].name
    folder.mkdir()
    started = folder / "started"
    started.touch()
    events = sorted(
        [(job.submit_s, "comes", job) for job in jobs]
        + [(end_s, "ends", job) for end_s, job in zip(result.end_s.tolist(), jobs, strict=True)],
        key=lambda event: event[:2],
    )
    try:
        for at_s, what, job in events:
            if what == "ends":
                (folder / job.name).touch()
                if at_s < jobs[-1].submit_s:
                    wait_until(lambda user=job.name[0]: usage(sandbox, user) > 0, lambda: sandbox.run("sshare", "-a"))
            else:
                wait = f"echo {job.name} >> {started}; until [ -e {folder / job.name} ]; do sleep 0.1; done"
                options = (f"--gres=gpu:{job.gpus}", f"-c{CPUS_PER_GPU * job.gpus}", f"--time={job.limit_min}")
                sandbox.run("sbatch", f"--account={job.name[0]}", "--output=/dev/null", *options, f"--wrap={wait}")
            expected = sum(start_s <= at_s for start_s in result.start_s.tolist())
            wait_until(lambda expected=expected: len(started.read_text().split()) >= expected, started.read_text)
            time.sleep(PASSES_S)
    finally:
        sandbox.run("scancel", f"--user={user_name()}")
        sandbox.wait_for_queue()

    assert started.read_text().split() == order.split()


def usage(sandbox: Sandbox, user: str) -> float:
    """Return the part of all usage that a user of the queues had."""
    rows = sandbox.run("sshare", "-anP", f"--accounts={user}", "--format=Account,EffectvUsage").stdout.split()
    return max(float(row.split("|")[1] or 0) for row in rows)
