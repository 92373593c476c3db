"""The installer, the doctor and the status on a real Slurm."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from mps import control_in
from slurm_jobs import GENEROUS, configure, gpusaged_status, submit_held, write_whole
from waiting import wait_until

pytestmark = pytest.mark.slurm

SITE_SCRIPT = """\
function slurm_job_submit(job, partitions, submitter)
  if job.name == "forbidden" then return slurm.ERROR end
  if job.name == "noted" then job.admin_comment = string.rep("x", 970) end
  return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.fixture
def bare(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with a job_submit.lua of its own and nothing of ours."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:1,1xh100:1")), release=slurm_release) as sandbox:
        (sandbox.layout.etc / "job_submit.lua").write_text(SITE_SCRIPT)
        conf = sandbox.layout.slurm_conf
        write_whole(conf, conf.read_text() + "JobSubmitPlugins=lua  # the site's\n")
        sandbox.reconfigure()
        time.sleep(1.1)  # slurmctld counts in seconds when it looks whether a script is newer than the one it has read
        yield sandbox


def install(sandbox: Sandbox) -> None:
    install_plugin(sandbox, settings=GENEROUS)


def contents(sandbox: Sandbox) -> dict[str, bytes]:
    folder = sandbox.layout.folder
    paths = [path for name in ("etc", "libexec") for path in (folder / name).rglob("*") if path.is_file()]
    return {path.name: path.read_bytes() for path in paths if path.name != "gpusage.toml"}


def doctor(sandbox: Sandbox, *variables: str) -> dict[str, str]:
    document = json.loads(sandbox.run("env", *variables, "gpusage", "slurm", "doctor", "--json", check=False).stdout)
    return {each["check"]: each["verdict"] for each in document["checks"]}


def test_install_works_twice_and_uninstall_restores_every_byte(bare: Sandbox) -> None:
    before = contents(bare)
    shown = bare.run("gpusage", "slurm", "install").stdout
    assert "+JobSubmitPlugins" not in shown
    assert "+CliFilterPlugins=lua" in shown
    refused = bare.run("gpusage", "slurm", "install", "--yes", check=False)
    assert (refused.returncode, "--nodes-ready" in refused.stderr) == (1, True)
    assert contents(bare) == before
    install(bare)
    again = bare.run("gpusage", "slurm", "install", "--yes").stdout
    assert again == "Nothing to change.\n"
    bare.run("sbatch", "--wait", "--gres=gpu:1", "--wrap=true")
    assert not set(bare.run("sinfo", "-hN", "-o", "%T").stdout.split()) & {"drained", "draining", "down"}
    uninstall(bare, before)
    bare.run("sbatch", "--wait", "--gres=gpu:1", "--wrap=true")


def uninstall(sandbox: Sandbox, before: Mapping[str, bytes]) -> None:
    """Uninstall as admin.md says; what Slurm runs stays until Slurm runs it no more."""
    command = ("gpusage", "slurm", "uninstall", "--yes")
    assert "scontrol reconfigure; then" in sandbox.run(*command).stdout
    assert {name: contents(sandbox)[name] for name in before} == before
    assert "Slurm still runs" in sandbox.run(*command).stdout
    assert sandbox.layout.libexec.exists()
    assert "must not run" in sandbox.run("gpusage", "slurm", "uninstall", "--node", "--yes", check=False).stderr
    sandbox.reconfigure()
    assert "reconfigure" not in sandbox.run(*command).stdout
    assert contents(sandbox) == before
    assert not sandbox.layout.libexec.exists()
    assert sandbox.run(*command).stdout == "Nothing to change.\n"


def test_doctor_fails_before_and_passes_after_an_installation(bare: Sandbox) -> None:
    assert "fail" in doctor(bare).values()
    install(bare)
    actual = doctor(bare)
    assert {check for check, verdict in actual.items() if verdict == "fail"} == set()
    assert actual["dry run"] == "pass"
    assert doctor(bare, "SBATCH_CLUSTERS=elsewhere") == actual


def test_the_sites_own_script_keeps_its_say(bare: Sandbox) -> None:
    install(bare)
    assert bare.run("sbatch", "--job-name=forbidden", "--gres=gpu:1", "--wrap=true", check=False).returncode != 0
    noted = submit_held(bare, "--job-name=noted", "--gres=gpu:2", "--comment=model=/nowhere/r.onnx").mark
    assert re.fullmatch(r"x{970}; gpusage [0-9a-f]{12} KEEP gres/gpu:2 \| .*\.\.\.", noted), noted
    assert len(noted) == 1024
    assert bare.run("sbatch", "--job-name=allowed", "--gres=gpu:1", "--wrap=true", check=False).returncode == 0


def test_status_shows_the_cluster_and_validate_takes_it(bare: Sandbox) -> None:
    install(bare)
    text = bare.run("gpusage", "slurm", "status").stdout
    limited = "memory limited by cap (a node has not said yet what it has)"
    assert f"v100 (v100-sxm2-16gb): 1 of 1 free, shared in 100 units, {limited}, feature v100" in text
    status = bare.run("gpusage", "slurm", "status", "--json").stdout
    (bare.layout.jobs / "cluster.json").write_text(status)
    (bare.layout.jobs / "job.sh").write_text("#!/bin/sh\n#SBATCH --gpus=2 --comment=gpusage=off\n")
    local = json.loads(bare.run("gpusage", "validate", "job.sh", "--json").stdout)
    filed = json.loads(bare.run("gpusage", "validate", "job.sh", "--json", "--cluster", "cluster.json").stdout)
    assert local["cluster"]["pools"] == filed["cluster"]["pools"]
    assert local["decisions"][0]["code"] == "DECLINE"


def test_status_and_doctor_find_the_daemon_of_a_broken_configuration(bare: Sandbox) -> None:
    install(bare)
    configure(bare, "mode = [broken")
    assert gpusaged_status(bare)["configuration"]["error"]
    text = bare.run("gpusage", "slurm", "status").stdout
    assert "mode enforce" in text
    assert "not usable, the last good one is in force" in text
    actual = doctor(bare)
    assert (actual["gpusage.toml"], actual["gpusaged"], actual["dry run"]) == ("fail", "warn", "pass")


def test_where_a_share_would_lose_the_sites_defaults_per_gpu_nothing_is_shared_in_that_partition(bare: Sandbox) -> None:
    conf = bare.layout.slurm_conf
    write_whole(conf, conf.read_text().replace("PartitionName=gpu ", "PartitionName=gpu DefCpuPerGPU=2 "))
    install(bare)
    status = bare.run("gpusage", "slurm", "status").stdout
    assert "not shared: a share would lose what partition gpu gives for each GPU (DefCpuPerGPU=2)" in status
    assert doctor(bare)["defaults per GPU"] == "warn"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_sites_own_prolog_runs_first_and_a_share_has_its_daemon_while_it_runs(bare: Sandbox) -> None:
    etc, log, mps = bare.layout.etc, bare.layout.jobs / "log", bare.layout.state / "mps"
    site = written(bare.layout.jobs / "site.sh", f"#!/bin/sh\necho site $SLURM_SCRIPT_CONTEXT >>{log}\n")
    conf = bare.layout.slurm_conf
    write_whole(conf, f"{conf.read_text()}Prolog={site}\nEpilog={site}\n")
    before = contents(bare)
    install(bare)
    control = control_in(bare.layout.jobs)
    control.with_name(f"{control.name}.log").symlink_to(log)
    for name in ("prolog", "epilog"):  # as on a node with a GPU
        wrapper = etc / f"gpusage_{name}.sh"
        exports = f"\nexport GPUSAGE_MPS_CONTROL={control} GPUSAGE_MPS_FOLDER={mps}\n"
        wrapper.write_text(wrapper.read_text().replace("\n", exports, 1))
    output = bare.layout.jobs / "seen"
    bare.run("sbatch", "--wait", f"--output={output}", "--gres=mps:40", f"--wrap=ls {mps}/jobs {mps}/gpu-0/pipe")
    wait_until(lambda: log.exists() and log.read_text().endswith("epilog_slurmd\n"))
    assert output.read_text().split() == [f"{mps}/gpu-0/pipe:", "running", f"{mps}/jobs:", "1"]
    # Whether the daemon runs, and has a fault, is asked more than once.
    assert [line for line in log.read_text().splitlines() if line != "get_server_list"] == [
        "site prolog_slurmd",
        "-d device=0 ceiling=none",
        "quit",
        "site epilog_slurmd",
    ]
    assert not (mps / "gpu-0" / "pipe" / "running").exists()
    uninstall(bare, before)
    bare.run("sbatch", "--wait", "--gres=gpu:1", "--wrap=true")


def test_without_our_prolog_no_gpu_is_shared_and_doctor_fails_in_enforce(bare: Sandbox) -> None:
    install(bare)
    assert doctor(bare)["node prolog"] == "pass"
    conf = bare.layout.slurm_conf
    write_whole(conf, conf.read_text().replace("\nProlog=", "\n#Prolog="))
    bare.reconfigure()
    assert doctor(bare)["node prolog"] == "fail"
    wait_until(lambda: "do not run gpusage's prolog" in bare.run("gpusage", "slurm", "status").stdout)
