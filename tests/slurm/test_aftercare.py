"""Jobs after they were rewritten: one that can never start is found, turned back or told of; and how a site leaves."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from slurm_jobs import (
    GENEROUS,
    configure,
    gpusaged_status,
    own_output,
    release,
    show_job,
    submit_held,
    submit_share,
    wait_for_state,
)
from waiting import wait_until

pytestmark = pytest.mark.slurm

MODELS = Path(__file__).parents[2] / "examples" / "models"
LIGHT = f"model={MODELS}/dlrm.onnx,batch=8,mode=infer"
TURNS_BACK = (23, 11)
"""22.05 changes no waiting share into a GPU; 24.11 and 26.05 do. What lies between was not tried."""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed, whose daemon acts on a job that has been stuck for two seconds."""
    plan = ClusterPlan(nodes=parse_nodes("1xv100:2"), settings=("PartitionName=other Nodes=ALL",))
    with start_sandbox(plan, release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", GENEROUS)
        text = sandbox.layout.gpusage_toml.read_text()
        configure(sandbox, text.replace("refresh_s = 1\n", "refresh_s = 1\nstuck_after_s = 2\n"))
        yield sandbox


@pytest.fixture(autouse=True)
def empty_queue(sandbox: Sandbox) -> Iterator[None]:
    """Leave no job and no change of the partition to the next test."""
    yield
    sandbox.run("scancel", "--state=PENDING", check=False)
    sandbox.run("scancel", "--state=RUNNING", check=False)
    sandbox.run("scontrol", "update", "PartitionName=other", "OverSubscribe=NO")
    sandbox.wait_for_queue()


def share(sandbox: Sandbox, *options: str, wrap: str = "true") -> str:
    """Return a held job that became a share."""
    return submit_share(sandbox, f"--comment={LIGHT}", *options, wrap=wrap)


def stuck_job(sandbox: Sandbox) -> str:
    """Return a rewritten job whose partition gives whole nodes since."""
    job = share(sandbox, "--partition=other")
    sandbox.run("scontrol", "update", "PartitionName=other", "OverSubscribe=EXCLUSIVE")
    release(sandbox, job)
    return job


def monitor_status(sandbox: Sandbox) -> dict[str, Any]:
    """Return what the daemon's status says of rewritten jobs."""
    expected: dict[str, Any] = gpusaged_status(sandbox)["job_monitor"]
    return expected


def test_a_job_that_can_never_start_is_turned_back_or_told_of(sandbox: Sandbox) -> None:
    """Its partition gives whole nodes since it was rewritten, and its node stays idle."""
    before = monitor_status(sandbox)["turned_back"]
    job = stuck_job(sandbox)
    number = show_job(sandbox, job)["AdminComment"].split()[1]
    if sandbox.installation.major_minor >= TURNS_BACK:
        ended = wait_for_state(sandbox, job, "COMPLETED")
        assert ended["TresPerNode"] == "gres/gpu:1"
        assert ended["AdminComment"].startswith(f"gpusage {number} BACK gres/mps:")
        wait_until(lambda: monitor_status(sandbox)["turned_back"] == before + 1)  # it counts what slurmctld has done
        assert monitor_status(sandbox)["stuck"] == []
        (decision,) = json.loads(sandbox.run("gpusage", "decisions", "--json", job).stdout)["decisions"]
        assert (decision["code"], decision["after"]) == ("BACK", "gres/gpu:1")
        assert "node v100-1 is idle and could run it" in decision["reasons"][0]
        return
    (text,) = wait_until(lambda: [each for each in monitor_status(sandbox)["stuck"] if f"slurm job {job} of " in each])
    assert "node v100-1 is idle" in text
    mark = show_job(sandbox, job)["AdminComment"]
    assert mark.startswith(f"gpusage {number} STUCK gres/gpu:1 -> gres/mps:")
    assert "| should have its GPU back: node v100-1 is idle" in mark
    assert "gpusage=off" in mark
    assert text in sandbox.run("gpusage", "slurm", "status").stdout
    checks = json.loads(sandbox.run("gpusage", "slurm", "doctor", "--json", check=False).stdout)["checks"]
    (check,) = [each for each in checks if each["check"] == "rewritten jobs"]
    assert check["verdict"] == "warn"
    sandbox.run("scancel", job)
    wait_until(lambda: not monitor_status(sandbox)["stuck"])
    assert show_job(sandbox, job)["AdminComment"] == mark


def test_a_job_that_waits_for_its_turn_is_left_alone(sandbox: Sandbox) -> None:
    """The node is full; a held job waits as well."""
    full = sandbox.run("sbatch", "--parsable", "--exclusive", "--wrap=sleep 1000").stdout.strip()
    wait_for_state(sandbox, full, "RUNNING")
    jobs = [share(sandbox), share(sandbox)]
    release(sandbox, jobs[0])
    marks = [show_job(sandbox, job)["AdminComment"] for job in jobs]
    time.sleep(5)  # more than two looks beyond the two seconds
    assert [show_job(sandbox, job)["AdminComment"] for job in jobs] == marks
    assert monitor_status(sandbox)["stuck"] == []


INNER = """
show='echo $0 percent=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE'
touch started
until [ -e go ]; do sleep 0.1; done
srun --quiet sh -c "$show" plain
srun --quiet --gres=gpu:1 sh -c "$show" gres
"""


def test_a_site_leaves_job_by_job_and_running_ones_keep_working(sandbox: Sandbox) -> None:
    """New jobs are left alone, waiting ones get their GPU back where Slurm can, and uninstall waits for the others."""
    jobs = sandbox.layout.jobs
    output = jobs / "inner"
    for path in (output, jobs / "started", jobs / "go"):
        path.unlink(missing_ok=True)
    running = share(sandbox, f"--output={output}", wrap=INNER)
    release(sandbox, running)
    wait_until((jobs / "started").exists)
    waiting = share(sandbox, "--array=1-3%2")
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
        assert ("gpu" in show_job(sandbox, waiting)["TresPerNode"]) == turns
        new = submit_held(sandbox, "--gres=gpu:1", f"--comment={LIGHT}")
        sandbox.run("scancel", new.job_id)
        assert ("gpu" in new.tres, new.mark) == (True, "")
        (jobs / "go").touch()
        wait_for_state(sandbox, running, "COMPLETED")
        assert re.fullmatch(r"plain percent=[1-9]\d*\ngres percent=[1-9]\d*\n", own_output(output))
        if turns:
            release(sandbox, waiting)
            wait_until(lambda: "PENDING" not in sandbox.run("scontrol", "show", "job", waiting).stdout)
            sandbox.wait_for_queue()
            assert "No rewritten job" in sandbox.run("gpusage", "slurm", "drain").stdout
    finally:
        (sandbox.layout.etc / "off").unlink()
        wait_until(lambda: not gpusaged_status(sandbox)["kill_switch"]["on"])


def test_a_job_that_was_turned_back_runs_its_own_srun_lines_on_a_whole_gpu(sandbox: Sandbox) -> None:
    """Its environment still has our mark, which nothing of ours takes for a share any more."""
    if sandbox.installation.major_minor < TURNS_BACK:
        pytest.skip("this version of Slurm turns no waiting share back")
    script = "echo batch cap=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT device=$CUDA_VISIBLE_DEVICES\n" + INNER.replace(
        "until [ -e go ]", "until true"
    ).replace("percent=", "device=$CUDA_VISIBLE_DEVICES percent=")
    output = sandbox.layout.jobs / "back"
    job = share(sandbox, "--partition=other", f"--output={output}", wrap=script)
    sandbox.run("scontrol", "update", "PartitionName=other", "OverSubscribe=EXCLUSIVE")
    release(sandbox, job)
    wait_for_state(sandbox, job, "COMPLETED", "FAILED")
    text = output.read_text()
    assert re.search(r"^batch cap= device=\S+$", text, re.MULTILINE), text
    assert re.search(r"^plain device=\S+ percent=$", text, re.MULTILINE), text
    assert re.search(r"^gres device=\S+ percent=$", text, re.MULTILINE), text
