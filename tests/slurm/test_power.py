"""A plan is carried out by Slurm's power saving: idle nodes that it does not use go off, and come back for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox

pytestmark = pytest.mark.slurm


def write_plan(path: Path, **on: tuple[float, float]) -> None:
    """Write a plan of four nodes that has those that are named on in these seconds from now."""
    document = {
        "schema": "gpusage.plan/1",
        "planned_at_s": time.time(),
        "nodes": [
            {"node": f"v100-{name[1:]}", "start_s": start_s, "end_s": end_s} for name, (start_s, end_s) in on.items()
        ],
        "unused_nodes": [f"v100-{number}" for number in range(1, 5) if f"n{number}" not in on],
    }
    path.write_text(json.dumps(document))


def power(sandbox: Sandbox, plan: Path, *options: str) -> dict[str, tuple[str, str]]:
    """Return what `gpusage slurm power` does with each node."""
    text = sandbox.run("gpusage", "slurm", "power", "--plan", str(plan), "--json", *options).stdout
    return {each["node"]: (each["action"], each["why"]) for each in json.loads(text)["nodes"]}


def states(sandbox: Sandbox) -> dict[str, str]:
    """Return the state of each node, as `sinfo` has it."""
    return dict(line.split() for line in sandbox.run("sinfo", "-hN", "-o", "%N %T").stdout.splitlines())


@pytest.fixture
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return four nodes that can be suspended."""
    plan = ClusterPlan(nodes=parse_nodes("4xv100:1"), power_saving=True)
    with start_sandbox(plan, release=slurm_release) as sandbox:
        yield sandbox


def test_a_plan_suspends_what_it_does_not_use_and_resumes_what_it_needs(sandbox: Sandbox, tmp_path: Path) -> None:
    """The node of a running job, and one that is drained, are left alone; each node is asked once."""
    plan = tmp_path / "plan.json"
    job = sandbox.run("sbatch", "--parsable", "--nodelist=v100-1", "--wrap=sleep 1000").stdout.strip()
    sandbox.run("scontrol", "update", "NodeName=v100-2", "State=DRAIN", "Reason=test")
    sandbox.wait_for(lambda: states(sandbox)["v100-1"] == "mixed", "the job runs")

    write_plan(plan, n4=(0, 3600))
    due = power(sandbox, plan)
    assert due == {
        "v100-1": ("leave", "a job runs there"),
        "v100-2": ("leave", "its state is DRAIN"),
        "v100-3": ("suspend", "the plan does not use it any more"),
        "v100-4": ("leave", "as planned"),
    }
    assert states(sandbox)["v100-3"] == "idle"
    sandbox.run("scontrol", "suspend", job)
    sandbox.wait_for(lambda: states(sandbox)["v100-1"] == "idle", "Slurm counts the suspended job's node as idle")
    assert power(sandbox, plan)["v100-1"] == ("leave", "a job is suspended there")
    sandbox.run("scontrol", "resume", job)
    sandbox.wait_for(lambda: states(sandbox)["v100-1"] == "mixed", "the job goes on")
    assert power(sandbox, plan, "--yes") == due
    assert power(sandbox, plan, "--yes")["v100-3"] == ("leave", "as planned")
    sandbox.wait_for(lambda: states(sandbox)["v100-3"] == "idle~", "the node is off")
    sandbox.wait_for(lambda: sandbox.pid("v100-3") is None, "its slurmd has ended")
    assert states(sandbox)["v100-4"] == "idle"

    write_plan(plan, n3=(30, 3600))  # a node may take 60 s to boot, so it is due
    assert power(sandbox, plan, "--yes")["v100-3"] == ("resume", "the plan has it on")
    assert power(sandbox, plan)["v100-3"][0] == "leave"
    sandbox.wait_for(lambda: states(sandbox)["v100-3"] == "idle", "the node is on")
    woken = sandbox.run("sbatch", "--parsable", "--nodelist=v100-3", "--wrap=true").stdout.strip()
    sandbox.wait_for(lambda: "COMPLETED" in sandbox.run("scontrol", "show", "job", woken).stdout, "a job ran there")
    assert "JobState=RUNNING" in sandbox.run("scontrol", "show", "job", job).stdout
