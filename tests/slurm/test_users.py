"""No two users' programs run on one GPU: a share that would start beside a stranger's is turned back before it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benches import load_bench
from gpusage_sandboxes.slurm import Sandbox
from slurm_jobs import release, show_job, submit_until, wait_for_state
from waiting import wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root submits jobs of other users"),
]

users = load_bench("users")
ADA, BOB, CARL = users.USERS[:3]


@pytest.fixture
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return two nodes with a GPU each, where gpusaged keeps no share off a node: the nodes alone do."""
    with users.started("2xv100:1", slurm_release) as sandbox:
        users.install(sandbox, "[sharing]\nkeep_apart = false\n")
        yield sandbox


def shared(sandbox: Sandbox, uid: int, *options: str, script: str = "sleep 1000") -> str:
    """Return a held job of the user *uid* that became a share."""
    command = (f"--uid={uid}", "--chdir=/", "--gres=gpu:1", f"--output={sandbox.layout.jobs}/%j.out", *options)
    comment: str = users.SHARES[0]
    held = submit_until(
        sandbox,
        lambda job: "mps" in job.tres,
        f"--comment=model={comment}",
        *command,
        wrap=f"echo ran on $SLURMD_NODENAME; {script}",
        environment={"GPUSAGE_CARD": users.cards()[comment.partition(",")[0]]},
    )
    return held.job_id


def output(sandbox: Sandbox, job: str) -> list[str]:
    """Return what the program of *job* wrote."""
    return [line for line in (sandbox.layout.jobs / f"{job}.out").read_text().splitlines() if line.startswith("ran")]


@pytest.mark.short
def test_a_share_beside_another_users_starts_elsewhere_and_else_is_whole(sandbox: Sandbox) -> None:
    """Nobody sees the first start: not its program, nor who waits for the job; what its user wrote stays."""
    mps = sandbox.layout.state / "mps"
    gone = mps / "v100-1" / "users" / "0" / "999999"  # of a job whose epilog never came
    gone.parent.mkdir(parents=True)
    gone.write_text(f"{CARL} {Path('/proc/sys/kernel/random/boot_id').read_text()}")
    release(sandbox, ada := shared(sandbox, ADA))
    assert wait_for_state(sandbox, ada, "RUNNING")["NodeList"] == "v100-1"
    wait_until(lambda: not gone.exists())  # slurmctld calls a job running before its prolog ends

    go = sandbox.layout.jobs / "go"
    bob = shared(sandbox, BOB, "--no-requeue", script=f"until [ -e {go} ]; do sleep 0.1; done")
    array = shared(sandbox, BOB, "--array=1-2", script="sleep 1")
    after = sandbox.run("sbatch", "--parsable", f"--dependency=afterok:{bob}", "--wrap=true").stdout.strip()
    release(sandbox, bob, array)
    moved = wait_for_state(sandbox, bob, "RUNNING", restarts=1)
    assert (moved["NodeList"], moved["Requeue"], moved["ExcNodeList"]) == ("v100-2", "0", "v100-1")
    assert "-> gres/mps:25, apart v100-1, start 2 | it would have started beside job" in moved["AdminComment"]
    for task in (f"{array}_1", f"{array}_2"):
        assert wait_for_state(sandbox, task, "COMPLETED", restarts=1)["NodeList"] == "v100-2"
    carl = shared(sandbox, CARL)  # only now: turned back, it waits for the whole GPU that the tasks need
    release(sandbox, carl)
    back = wait_for_state(sandbox, carl, "PENDING", restarts=1)
    assert " BACK gres/mps:" in back["AdminComment"]
    go.touch()
    ended = wait_for_state(sandbox, bob, "COMPLETED", restarts=1)
    assert output(sandbox, bob) == ["ran on v100-2"]
    assert wait_for_state(sandbox, after, "COMPLETED")["StartTime"] >= ended["EndTime"]

    assert wait_for_state(sandbox, carl, "RUNNING")["NodeList"] == "v100-2"
    assert "mps:25" not in show_job(sandbox, carl)["TresPerNode"]
    assert not {*sandbox.run("sinfo", "-hN", "-o", "%T").stdout.split()} & {"drained", "draining", "down"}
    sandbox.run("scancel", ada, carl)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_thousand_jobs_of_ten_users(slurm_release: str | None) -> None:
    draws = users.draw(1000, 32, 1.0, 20.0)
    with users.started("16xv100:2", slurm_release) as sandbox:
        without = users.run(sandbox, draws)
    with users.started("16xv100:2", slurm_release) as sandbox:
        users.install(sandbox)
        done = users.run(sandbox, draws)
    print(without, done, sep="\n")
    assert not done.meetings
    assert done.drained == 0
    assert done.lost <= done.shares / 10
    assert sum(done.waits_s) <= sum(without.waits_s)
