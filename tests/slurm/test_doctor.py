"""What doctor says of a real Slurm whose site does something else than gpusage expects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusage.boundary.operating_system import user_name
from gpusage_sandboxes import processes
from gpusage_sandboxes.gpusaged import start_gpusaged
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from slurm_jobs import (
    GENEROUS,
    configure,
    show_job,
    submit_held,
    submit_share,
    submit_until,
    wait_for_state,
    write_whole,
)
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.one_release, pytest.mark.usefixtures("empty_queue")]

MODELS = Path(__file__).parents[2] / "examples" / "models"
LIGHT = f"--comment=model={MODELS}/dlrm.onnx,batch=8,mode=infer"
REFUSES = """\
function slurm_job_submit() return slurm.SUCCESS end
function slurm_job_modify(job)
  if job.tres_per_node ~= nil then return slurm.ERROR end
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster of two nodes of a type, one of them without mps, whose site lets nobody change Gres."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("2xv100:2")), release=slurm_release) as sandbox:
        (sandbox.layout.etc / "job_submit.lua").write_text(REFUSES)
        install_plugin(sandbox, "enforce", GENEROUS)
        yield sandbox


def doctor(sandbox: Sandbox, name: str, **variables: str) -> tuple[str, str]:
    """Return verdict and observation of one check."""
    done = sandbox.run("gpusage", "slurm", "doctor", "--json", environment=variables, check=False)
    (check,) = (each for each in json.loads(done.stdout)["checks"] if each["check"] == name)
    return check["verdict"], check["observation"]


def test_a_site_that_lets_nobody_change_gres_is_known_once_it_refused(sandbox: Sandbox) -> None:
    start_gpusaged(sandbox)  # which has counted none yet, whatever an earlier try did
    assert doctor(sandbox, "task epilog")[0] == "pass"
    job = submit_share(sandbox, LIGHT)
    refused = sandbox.run("scontrol", "update", f"JobId={job}", "Gres=gpu:1", check=False)
    assert refused.returncode != 0
    submit_held(sandbox, "--gres=gpu:1", LIGHT)  # with its question the count goes to gpusaged
    verdict, observation = doctor(sandbox, "task epilog")
    assert (verdict, "job_submit refused 1 times" in observation) == ("warn", True)


def test_a_deleted_task_epilog_and_jobs_that_slurm_requeues_not_are_told(sandbox: Sandbox) -> None:
    conf = sandbox.layout.slurm_conf
    text = conf.read_text()
    write_whole(conf, f"{text}JobRequeue=0\n")
    sandbox.reconfigure()
    observation = doctor(sandbox, "task epilog")[1]
    write_whole(conf, text)
    sandbox.reconfigure()
    assert observation.startswith("JobRequeue=0: no job runs again")

    (epilog,) = sandbox.layout.libexec.glob("*task_epilog.sh")
    moved = epilog.rename(epilog.with_suffix(".away"))
    verdict, observation = doctor(sandbox, "task epilog")
    moved.rename(epilog)
    assert (verdict, observation) == ("fail", f"{epilog} is not executable here")


def test_whoever_else_divides_the_gpus_of_this_node_is_told(sandbox: Sandbox, tmp_path: Path) -> None:
    """By a process of that name, and a program that says what nvidia-smi would."""
    # Of another sandbox on this host a daemon is to be seen for a moment.
    wait_until(lambda: doctor(sandbox, "GPUs of this node")[0] == "pass")
    control, query = tmp_path / "nvidia-cuda-mps-control", tmp_path / "nvidia-smi"
    control.write_text("#!/bin/sh\nexec 1>&-\nread never\n")
    query.write_text("#!/bin/sh\necho 0, Exclusive_Process\n")
    for program in (control, query):
        program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{sandbox.environment['PATH']}"}
    assert "0 (Exclusive_Process)" in doctor(sandbox, "GPUs of this node", **path)[1]

    environment = {"PATH": "/usr/bin:/bin", "CUDA_MPS_PIPE_DIRECTORY": "/site/pipe"}
    with subprocess.Popen([control, "-d"], stdin=subprocess.PIPE, env=environment) as process:
        observation = doctor(sandbox, "GPUs of this node")[1]
        process.kill()
    assert f"{process.pid} (/site/pipe)" in observation


def test_before_23_11_5_gpus_stay_whole_until_the_site_accepts_that_slurm_books_them_twice(sandbox: Sandbox) -> None:
    """What Slurm does then is plain Slurm's: a job gets all GPUs of a node while a share of one still runs there."""
    sandbox.run("scontrol", "update", "NodeName=v100-2", "State=DRAIN", "Reason=test")
    sandbox.run("scancel", f"--user={user_name()}")
    sandbox.wait_for_queue()
    first, second = (
        sandbox.run("sbatch", "--parsable", "--gres=mps:50", "--wrap=sleep 1000").stdout.strip() for _ in range(2)
    )
    for share in (first, second):
        wait_for_state(sandbox, share, "RUNNING")
    sandbox.run("scancel", first)
    wait_for_state(sandbox, first, "CANCELLED")
    whole = sandbox.run("sbatch", "--parsable", "--gres=gpu:2", "--wrap=sleep 1000").stdout.strip()
    wait_for_state(sandbox, whole, "RUNNING")
    assert show_job(sandbox, second)["JobState"] == "RUNNING"
    sandbox.run("scancel", second, whole)
    sandbox.run("scontrol", "update", "NodeName=v100-2", "State=RESUME")

    submit_share(sandbox, LIGHT)
    verdict, observation = doctor(sandbox, "release")
    assert (verdict, "so no GPU is shared" in observation) == ("warn", False)
    toml = sandbox.layout.gpusage_toml.read_text()
    configure(sandbox, toml.replace("accept_double_booking = true", ""))
    try:
        whole_job = submit_until(sandbox, lambda job: "books a GPU twice" in job.mark, "--gres=gpu:1", LIGHT)
        verdict = doctor(sandbox, "release")[0]
    finally:
        configure(sandbox, toml)
    assert whole_job.tres.endswith("gpu:1")
    assert "Slurm before 23.11.5 books a GPU twice once a share on it ends" in whole_job.output
    assert verdict == "fail"


def test_a_node_of_a_type_without_mps_is_told(sandbox: Sandbox) -> None:
    assert doctor(sandbox, "gres/mps")[0] == "pass"
    conf, gres = sandbox.layout.slurm_conf, sandbox.layout.etc / "gres.conf"
    before = {file: file.read_text() for file in (conf, gres)}
    node = next(line for line in before[conf].splitlines(keepends=True) if line.startswith("NodeName=v100-2 "))
    write_whole(conf, before[conf].replace(node, node.replace(",mps:200", "")))
    rest = [line for line in before[gres].splitlines(keepends=True) if not ("v100-2" in line and "mps" in line)]
    write_whole(gres, "".join(rest))
    try:
        restart(sandbox, "v100-2")
        finding = doctor(sandbox, "gres/mps")
    finally:
        for file, text in before.items():
            write_whole(file, text)
        restart(sandbox, "v100-2")
    assert finding == ("warn", "some nodes with v100 have no mps: no share ever starts there")


def restart(sandbox: Sandbox, node: str) -> None:
    """Restart slurmctld and the slurmd of *node*, so that both read what the node has."""
    processes.end([pid for pid in [sandbox.pid(node)] if pid], grace_s=10)
    sandbox.restart_controller()
    sandbox.start_node(node)
    sandbox.wait_for_nodes()
