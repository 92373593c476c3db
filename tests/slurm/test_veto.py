"""Jobs that would hurt each other on one GPU are kept apart where another node has room, and no job waits for that."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusage_slurm.sandbox import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_slurm.sandbox.trial import install_plugin

pytestmark = pytest.mark.slurm

MODELS = Path(__file__).parents[2] / "examples" / "models"
PROMISED = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer,slo=4ms"
"""Alone on a share, steps take up to 2.8 ms: beside training, where they may take twice as long, 4 might not hold."""
TRAINING = f"model={MODELS}/resnet18.onnx,batch=8,utilization=15"
SERVING = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer"
OWN = "v100-3"
"""Excluded by the users of all jobs here."""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return three nodes with gpusage installed, on the first of which a job runs that promises a latency."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("3xv100:1")), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", "[slurm]\nlimit_ms = 1000\n")
        toml = sandbox.layout.etc / "gpusage.toml"
        toml.write_text(toml.read_text().replace("refresh_s = 1\n", "refresh_s = 1\nstuck_after_s = 1\n"))
        job = shared(sandbox, PROMISED, "--nodelist=v100-1", wrap="sleep 300")
        wait(lambda: shown(sandbox, job)["JobState"] == "RUNNING")
        yield sandbox
        sandbox.run("scancel", "--state=PENDING", check=False)
        sandbox.run("scancel", "--state=RUNNING", check=False)


def shared(sandbox: Sandbox, comment: str, *options: str, wrap: str = "sleep 120") -> str:
    """Return a job that became a share, once one did: a busy machine may be late for the first."""
    command = ("sbatch", "--parsable", "--gres=gpu:1", f"--comment={comment}", *options, f"--wrap={wrap}")
    for _ in range(20):
        job = sandbox.run(*command).stdout.strip()
        if "mps" in shown(sandbox, job)["TresPerNode"]:
            return job
        sandbox.run("scancel", job)
    pytest.fail("no job was rewritten")


def kept_off(sandbox: Sandbox, *options: str) -> str:
    """Return a training job that avoids a node, once gpusaged knows who runs there."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        job = shared(sandbox, TRAINING, f"--exclude={OWN}", *options)
        if "avoid" in shown(sandbox, job)["AdminComment"]:
            return job
        sandbox.run("scancel", job)
        time.sleep(0.5)
    pytest.fail(f"no job was kept off: {shown(sandbox, job)['AdminComment']}")


def shown(sandbox: Sandbox, job: str) -> dict[str, str]:
    """Return what `scontrol show job` says; the mark as a whole."""
    text = sandbox.run("scontrol", "show", "job", job).stdout
    return dict(re.findall(r"(\w+)=(\S*)", text)) | dict(re.findall(r"^ *(AdminComment)=(.*?) *$", text, re.MULTILINE))


def node_of(sandbox: Sandbox, job: str) -> str:
    """Return where *job* runs, once it does."""
    wait(lambda: shown(sandbox, job)["JobState"] == "RUNNING")
    return shown(sandbox, job)["NodeList"]


def wait(condition: Callable[[], object], limit_s: float = 60) -> None:
    """Wait until *condition* holds."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def test_training_is_kept_off_a_promise_while_another_node_has_room_and_waits_for_none(sandbox: Sandbox) -> None:
    """Its user is told; and once the other node is full, a job that was kept off is let in."""
    beside = shared(sandbox, SERVING, "--nodelist=v100-1")
    assert "avoid" not in shown(sandbox, beside)["AdminComment"]
    held = kept_off(sandbox, "--hold")
    moved = kept_off(sandbox)
    assert node_of(sandbox, moved) == "v100-2"
    assert shown(sandbox, moved)["ExcNodeList"] == "v100-[1,3]"
    (told,) = json.loads(sandbox.run("gpusage", "decisions", "--json", moved).stdout)["decisions"]
    assert re.fullmatch(r"gres/mps:\d+, avoid v100-1", told["after"])
    assert "kept off v100-1, where a promised latency might not hold" in told["reasons"]

    sandbox.run("scancel", moved)
    full = sandbox.run("sbatch", "--parsable", "--gres=gpu:1", "--nodelist=v100-2", "--wrap=sleep 120").stdout.strip()
    assert node_of(sandbox, full) == "v100-2"
    sandbox.run("scontrol", "release", held)
    assert node_of(sandbox, held) == "v100-1"
    assert shown(sandbox, held)["ExcNodeList"] == OWN
    mark = shown(sandbox, held)["AdminComment"]
    assert re.search(r" REWRITE gres/gpu:1 -> gres/mps:\d+ \| it may run on v100-1 again: node v100-1, which", mark)

    sandbox.run("scancel", held)
    late = shared(sandbox, TRAINING, f"--exclude={OWN}")
    assert "avoid" not in shown(sandbox, late)["AdminComment"]
    assert node_of(sandbox, late) == "v100-1"
