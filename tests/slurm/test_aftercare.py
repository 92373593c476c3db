"""Jobs after they were rewritten: one that can never start is found, turned back or told of; and how a site leaves."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusage.service.client import status
from gpusage_slurm.sandbox import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_slurm.sandbox.trial import install_plugin

pytestmark = pytest.mark.slurm

MODELS = Path(__file__).parents[2] / "examples" / "models"
LIGHT = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer"
SETTINGS = "[slurm]\nlimit_ms = 1000\n"
TURNS_BACK = (23, 11)
"""22.05 changes no waiting share into a GPU; 24.11 and 26.05 do. What lies between was not tried."""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed, whose daemon acts on a job that has been stuck for two seconds."""
    plan = ClusterPlan(nodes=parse_nodes("1xv100:2"), settings=("PartitionName=other Nodes=ALL",))
    with start_sandbox(plan, release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", SETTINGS)
        toml = sandbox.layout.etc / "gpusage.toml"
        toml.write_text(toml.read_text().replace("refresh_s = 1\n", "refresh_s = 1\nstuck_after_s = 2\n"))
        yield sandbox


@pytest.fixture(autouse=True)
def empty_queue(sandbox: Sandbox) -> Iterator[None]:
    """Leave no job and no change of the partition to the next test."""
    yield
    sandbox.run("scancel", "--state=PENDING", check=False)
    sandbox.run("scancel", "--state=RUNNING", check=False)
    sandbox.run("scontrol", "update", "PartitionName=other", "OverSubscribe=NO")
    sandbox.wait_for_queue()


def rewritten(sandbox: Sandbox, *options: str, wrap: str = "true", comment: str = LIGHT) -> str:
    """Return a job that became a share, once one did: a busy machine may be late for the first."""
    for _ in range(20):
        command = ("sbatch", "--parsable", "--gres=gpu:1", f"--comment={comment}", *options, f"--wrap={wrap}")
        job = sandbox.run(*command).stdout.strip()
        if "mps" in shown(sandbox, job)["TresPerNode"]:
            return job
        sandbox.run("scancel", job)
    pytest.fail("no job was rewritten")


def shown(sandbox: Sandbox, job: str) -> dict[str, str]:
    """Return what `scontrol show job` says; the mark as a whole."""
    text = sandbox.run("scontrol", "show", "job", job).stdout
    found = dict(re.findall(r"(\w+)=(\S*)", text))
    return found | dict(re.findall(r"^ *(AdminComment)=(.*?) *$", text, re.MULTILINE))


def wait(condition: Callable[[], object], limit_s: float = 60) -> None:
    """Wait until *condition* holds."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def stuck_job(sandbox: Sandbox) -> str:
    """Return a rewritten job whose partition gives whole nodes since."""
    job = rewritten(sandbox, "--partition=other", "--hold")
    sandbox.run("scontrol", "update", "PartitionName=other", "OverSubscribe=EXCLUSIVE")
    sandbox.run("scontrol", "release", job)
    return job


def aftercare(sandbox: Sandbox) -> dict[str, Any]:
    """Return what the daemon's status says of rewritten jobs."""
    found: dict[str, Any] = status(str(sandbox.layout.socket))["aftercare"]
    return found


def test_a_job_that_can_never_start_is_turned_back_or_told_of(sandbox: Sandbox) -> None:
    """Its partition gives whole nodes since it was rewritten, and its node stays idle."""
    before = aftercare(sandbox)["turned_back"]
    job = stuck_job(sandbox)
    number = shown(sandbox, job)["AdminComment"].split()[1]
    if sandbox.installation.major_minor >= TURNS_BACK:
        wait(lambda: shown(sandbox, job)["JobState"] == "COMPLETED")
        assert shown(sandbox, job)["TresPerNode"] == "gres/gpu:1"
        assert shown(sandbox, job)["AdminComment"].startswith(f"gpusage {number} BACK gres/mps:")
        assert aftercare(sandbox)["turned_back"] == before + 1
        assert aftercare(sandbox)["stuck"] == []
        (told,) = json.loads(sandbox.run("gpusage", "decisions", "--json", job).stdout)["decisions"]
        assert (told["code"], told["after"]) == ("BACK", "gres/gpu:1")
        assert "node v100-1 is idle and could run it" in told["reasons"][0]
        return
    wait(lambda: aftercare(sandbox)["stuck"])
    (text,) = aftercare(sandbox)["stuck"]
    assert f"slurm job {job} of " in text
    assert "node v100-1 is idle" in text
    mark = shown(sandbox, job)["AdminComment"]
    assert mark.startswith(f"gpusage {number} STUCK gres/gpu:1 -> gres/mps:")
    assert "| should have its GPU back: node v100-1 is idle" in mark
    assert "gpusage=off" in mark
    assert text in sandbox.run("gpusage", "slurm", "status").stdout
    checks = json.loads(sandbox.run("gpusage", "slurm", "doctor", "--json", check=False).stdout)["checks"]
    (check,) = [each for each in checks if each["check"] == "rewritten jobs"]
    assert check["verdict"] == "warn"
    sandbox.run("scancel", job)
    wait(lambda: not aftercare(sandbox)["stuck"])
    assert shown(sandbox, job)["AdminComment"] == mark


def test_a_job_that_waits_for_its_turn_is_left_alone(sandbox: Sandbox) -> None:
    """The node is full; a held job waits as well."""
    sandbox.run("sbatch", "--exclusive", "--wrap=sleep 60")
    jobs = [rewritten(sandbox), rewritten(sandbox, "--hold")]
    marks = [shown(sandbox, job)["AdminComment"] for job in jobs]
    time.sleep(5)  # more than two looks beyond the two seconds
    assert [shown(sandbox, job)["AdminComment"] for job in jobs] == marks
    assert aftercare(sandbox)["stuck"] == []


INNER = """
show='echo $0 percent=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE'
touch started
until [ -e go ]; do sleep 0.1; done
srun sh -c "$show" plain
srun --gres=gpu:1 sh -c "$show" gres
"""


def test_a_site_leaves_job_by_job_and_running_ones_keep_working(sandbox: Sandbox) -> None:
    """New jobs are left alone, waiting ones get their GPU back where Slurm can, and uninstall waits for the others."""
    jobs = sandbox.layout.jobs
    output = jobs / "inner"
    running = rewritten(sandbox, f"--output={output}", wrap=INNER)
    wait((jobs / "started").exists)
    waiting = rewritten(sandbox, "--hold", "--array=1-3%2")
    assert f"{running} of " in sandbox.run("gpusage", "slurm", "drain").stdout
    assert not (sandbox.layout.etc / "off").exists()
    refused = sandbox.run("gpusage", "slurm", "uninstall", "--yes", check=False)
    assert (refused.returncode, "--with-jobs" in refused.stderr) == (1, True)
    try:
        left = json.loads(sandbox.run("gpusage", "slurm", "drain", "--yes", "--json").stdout)
        assert left["kill_switch"] == {"path": str(sandbox.layout.etc / "off"), "made": True, "trouble": None}
        turns = sandbox.installation.major_minor >= TURNS_BACK
        what = {each["job_id"].split("_")[0]: each["what"] for each in left["jobs"]}
        stays = "let it end, or cancel it and submit it again"
        assert what == {running: "let it end", waiting: "turned back" if turns else stays}
        assert ("gpu" in shown(sandbox, waiting)["TresPerNode"]) == turns
        new = sandbox.run("sbatch", "--parsable", "--hold", "--gres=gpu:1", f"--comment={LIGHT}", "--wrap=true")
        found = shown(sandbox, new.stdout.strip())
        sandbox.run("scancel", new.stdout.strip())
        assert ("gpu" in found["TresPerNode"], found.get("AdminComment")) == (True, None)
        (jobs / "go").touch()
        wait(lambda: shown(sandbox, running)["JobState"] == "COMPLETED")
        assert re.fullmatch(r"plain percent=[1-9]\d*\ngres percent=[1-9]\d*\n", output.read_text())
        if turns:
            sandbox.run("scontrol", "release", waiting)
            wait(lambda: "PENDING" not in sandbox.run("scontrol", "show", "job", waiting).stdout)
            sandbox.wait_for_queue()
            assert "No rewritten job" in sandbox.run("gpusage", "slurm", "drain").stdout
    finally:
        (sandbox.layout.etc / "off").unlink()
        wait(lambda: not status(str(sandbox.layout.socket))["kill_switch"]["on"])


def test_a_job_that_was_turned_back_runs_its_own_srun_lines_on_a_whole_gpu(sandbox: Sandbox) -> None:
    """Its environment still has our mark, which nothing of ours takes for a share any more."""
    if sandbox.installation.major_minor < TURNS_BACK:
        pytest.skip("this version of Slurm turns no waiting share back")
    script = "echo batch cap=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT device=$CUDA_VISIBLE_DEVICES\n" + INNER.replace(
        "until [ -e go ]", "until true"
    ).replace("percent=", "device=$CUDA_VISIBLE_DEVICES percent=")
    output = sandbox.layout.jobs / "back"
    job = rewritten(sandbox, "--partition=other", "--hold", f"--output={output}", wrap=script)
    sandbox.run("scontrol", "update", "PartitionName=other", "OverSubscribe=EXCLUSIVE")
    sandbox.run("scontrol", "release", job)
    wait(lambda: shown(sandbox, job)["JobState"] in ("COMPLETED", "FAILED"))
    text = output.read_text()
    assert re.search(r"^batch cap= device=\S+$", text, re.MULTILINE), text
    assert re.search(r"^plain device=\S+ percent=$", text, re.MULTILINE), text
    assert re.search(r"^gres device=\S+ percent=$", text, re.MULTILINE), text
