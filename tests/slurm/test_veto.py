"""Jobs that would hurt each other on one GPU are kept apart where another node has room, and no job waits for that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from slurm_jobs import GENEROUS, HeldJob, configure, release, show_job, submit_share, submit_until, wait_for_state

pytestmark = pytest.mark.slurm

MODELS = Path(__file__).parents[2] / "examples" / "models"
PROMISED = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer,slo=4ms"
"""Alone on a share, steps take up to 2.8 ms: beside training, where they may take twice as long, 4 might not hold."""
TRAINING = f"model={MODELS}/resnet18.onnx,batch=8,utilization=15"
SERVING = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer"
OWN = "v100-3"
"""Excluded by the users of all jobs here."""


@pytest.fixture
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return three nodes with gpusage installed, on the first of which a job runs that promises a latency."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("3xv100:1")), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", GENEROUS)
        text = sandbox.layout.gpusage_toml.read_text()
        configure(sandbox, text.replace("refresh_s = 1\n", "refresh_s = 1\nstuck_after_s = 1\n"))
        release(sandbox, job := shared(sandbox, PROMISED, "--nodelist=v100-1"))
        wait_for_state(sandbox, job, "RUNNING")
        yield sandbox
        sandbox.run("scancel", "--state=PENDING", check=False)
        sandbox.run("scancel", "--state=RUNNING", check=False)


def shared(sandbox: Sandbox, comment: str, *options: str, wrap: str = "sleep 1000") -> str:
    """Return a held job that became a share."""
    return submit_share(sandbox, f"--comment={comment}", *options, wrap=wrap)


def training(sandbox: Sandbox, *, excluded: bool) -> str:
    """Return a held training job, once gpusaged knows who runs where: with a node *excluded* or not."""
    options = ("--gres=gpu:1", f"--comment={TRAINING}", f"--exclude={OWN}")

    def is_wanted(job: HeldJob) -> bool:
        return "mps" in job.tres and ("avoid" in job.mark) == excluded

    return submit_until(sandbox, is_wanted, *options, wrap="sleep 1000").job_id


def node_of(sandbox: Sandbox, job: str) -> str:
    """Return where *job* runs, once it does."""
    return wait_for_state(sandbox, job, "RUNNING")["NodeList"]


def test_training_is_kept_off_a_promise_while_another_node_has_room_and_waits_for_none(sandbox: Sandbox) -> None:
    """Its user is told; and once the other node is full, a job that was kept off is let in."""
    neighbour = shared(sandbox, SERVING, "--nodelist=v100-1")
    assert "avoid" not in show_job(sandbox, neighbour)["AdminComment"]
    release(sandbox, neighbour)
    held = training(sandbox, excluded=True)
    hostile = f"{TRAINING} ExcNodeList=v100-[1-99999]"  # behind slurmctld's own word in the line of `scontrol show job`
    sandbox.run("scontrol", "update", f"JobId={held}", f"Comment={hostile}")
    release(sandbox, moved := training(sandbox, excluded=True))
    assert node_of(sandbox, moved) == "v100-2"
    assert show_job(sandbox, moved)["ExcNodeList"] == "v100-[1,3]"
    (decision,) = json.loads(sandbox.run("gpusage", "decisions", "--json", moved).stdout)["decisions"]
    assert re.fullmatch(r"gres/mps:\d+, avoid v100-1", decision["after"])
    assert "avoids v100-1, where a promised latency might not hold" in decision["reasons"]

    sandbox.run("scancel", moved)
    full = sandbox.run("sbatch", "--parsable", "--gres=gpu:1", "--nodelist=v100-2", "--wrap=sleep 1000").stdout.strip()
    assert node_of(sandbox, full) == "v100-2"
    release(sandbox, held)
    assert node_of(sandbox, held) == "v100-1"
    assert sandbox.run("squeue", "-h", f"--jobs={held}", "-o", "%x").stdout.strip() == OWN
    mark = show_job(sandbox, held)["AdminComment"]
    assert re.search(r" REWRITE gres/gpu:1 -> gres/mps:\d+ \| it may run on v100-1 again: node v100-1, which", mark)

    sandbox.run("scancel", held)
    release(sandbox, late := training(sandbox, excluded=False))  # once gpusaged has seen that the other node is full
    assert node_of(sandbox, late) == "v100-1"
