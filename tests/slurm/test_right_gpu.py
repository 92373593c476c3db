"""On real Slurm, a share finds its own GPU or none, and a killed share's neighbour works on. The GPUs are faked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpusage_slurm
from gpusage.node.dividing.granted import read_granted
from gpusage_sandboxes import processes
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from slurm_jobs import first_job_number, wait_for_state
from waiting import wait_until
from walls import GPUS, FakeGpus, can_mount, fake_gpus

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(not can_mount(), reason="needs mount namespaces, as root has them"),
]

NODE = Path(gpusage_slurm.__file__).parent / "node"
FREEZER = Path("/sys/fs/cgroup/freezer")
HIDES = "unshare -m sh -c 'mount -t tmpfs none {root} && {program}'"


class Shares:
    """A node of two GPUs whose prologs are ours; jobs ask for shares themselves, so nothing decides."""

    def __init__(self, sandbox: Sandbox, gpus: FakeGpus, constrained: bool) -> None:
        self.sandbox, self.gpus, self.constrained = sandbox, gpus, constrained
        self.folder, self.root = sandbox.layout.jobs, sandbox.layout.state / "mps"

    def submit(self, share: int, script: str, gpu: int) -> str:
        """Start a job with *share* % of a GPU, which will be *gpu*; return its number."""
        path = self.folder / "share.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        options = ("--parsable", "--hold", f"--gres=mps:{share}", f"--output={self.folder}/%j.out")
        ours = f"--export=ALL,GPUSAGE_DECISION=mps:{share},GPUSAGE_NOTICE=no"
        job = self.sandbox.run("sbatch", *options, ours, str(path)).stdout.strip()
        if self.constrained:  # as the device filter does that Slurm makes of real devices
            node = self.sandbox.nodes()[0]
            self.gpus.ask("configure", devices={f"/slurm_{node}/uid_0/job_{job}": [gpu]})
        self.sandbox.run("scontrol", "release", job)
        return job

    def started(self, share: int = 40, gpu: int = 0) -> str:
        """Start a job that runs until it is cancelled or finds the file `over`."""
        job = self.submit(share, f"touch {self.folder}/began-$SLURM_JOB_ID; until [ -e over ]; do sleep 0.1; done", gpu)
        wait_until((self.folder / f"began-{job}").exists)
        return job

    def output(self, job: str) -> list[str]:
        """Return what a job printed, once it has ended."""
        wait_for_state(self.sandbox, job, "COMPLETED", "FAILED")
        return (self.folder / f"{job}.out").read_text().splitlines()

    def trouble(self, job: str) -> str:
        """Return what the node wrote down about a job's part."""
        granted = read_granted(job, folder=self.root)
        assert granted is not None
        return granted.trouble


@pytest.fixture(params=[False, True], ids=["all devices", "ConstrainDevices"])
def shares(slurm_release: str | None, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shares]:
    constrained: bool = request.param
    if constrained and not (FREEZER / "cgroup.procs").exists():
        pytest.skip("Slurm's cgroup/v1 is tried where the host has it")
    tmp_path.chmod(0o755)
    settings = {"cgroups": str(FREEZER)} if constrained else {}
    with (
        fake_gpus(tmp_path, gpus=GPUS[:2], **settings) as gpus,
        start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2")), release=slurm_release) as sandbox,
    ):
        shares = Shares(sandbox, gpus, constrained)
        if constrained and sandbox.installation.major_minor >= (26, 5):
            pytest.skip("its device filter denies /dev/null beside GPUs that are plain files")
        configure(shares, tmp_path)
        yield shares


def configure(shares: Shares, programs: Path) -> None:
    """Let slurmd run our scripts with the stand-ins, and constrain devices where that is wished."""
    layout = shares.sandbox.layout
    text = layout.slurm_conf.read_text()
    for key in ("prolog", "task_prolog", "epilog"):
        wrapper = layout.etc / f"{key}.sh"
        exports = f"GPUSAGE_MPS_FOLDER={shares.root} GPUSAGE_CUDA_LIBRARY=/none.so PATH={programs}:/usr/bin:/bin"
        wrapper.write_text(f"#!/bin/sh\nexport {exports}\nexec {NODE / f'{key}.sh'}\n")
        wrapper.chmod(0o755)
        text += f"{key.title().replace('_', '')}={wrapper}\n"
    if shares.constrained:
        text = text.replace("TaskPlugin=task/none", "TaskPlugin=task/cgroup").replace("linuxproc", "cgroup")
        (layout.etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n")
        text += f"{first_job_number()}\n"
    layout.slurm_conf.write_text(text)
    shares.sandbox.restart_controller()
    for node in shares.sandbox.nodes():
        pid = shares.sandbox.pid(node)
        processes.end([pid] if pid else [], grace_s=10)
        shares.sandbox.start_node(node)
    shares.sandbox.wait_for_nodes()


@pytest.mark.short
def test_a_share_on_the_second_gpu_finds_it_wherever_it_runs(shares: Shares) -> None:
    """As a client of the daemon, in a namespace that hides it, and in a step; a number is parsed where it is one."""
    shares.started(share=60)
    allocates = f"{shares.gpus.programs}/fake-gpu take 1"
    hidden = HIDES.format(root=shares.root, program=allocates)
    parses = (
        f"{sys.executable} -c 'import os; int(os.environ[\"CUDA_VISIBLE_DEVICES\"])' 2>&1 && echo parsed || echo not"
    )
    lines = shares.output(shares.submit(60, f"{allocates}\n{hidden}\nsrun {allocates}\n{parses}", gpu=1))
    views = [json.loads(line) for line in lines if line.startswith("{")]
    own = GPUS[1]["uuid"]
    assert [(each.get("gpu"), each.get("mps")) for each in views] == [(own, True), (own, False), (own, True)]
    assert lines[-1] == ("parsed" if shares.constrained else "not")


@pytest.mark.parametrize("shares", [False], indirect=True)
def test_a_server_that_a_killed_share_left_with_a_fault_goes_with_the_last_job_that_uses_it(shares: Shares) -> None:
    killed, neighbour = shares.started(), shares.started()
    pipe = shares.root / f"gpu-{GPUS[0]['uuid']}" / "pipe"
    (pipe / "clients").write_text("50 51\n")
    (pipe / "status").write_text("FAULT\n")
    shares.sandbox.run("scancel", "--signal=KILL", "--full", killed)
    wait_until(lambda: not (shares.root / "jobs" / killed).exists())
    assert (pipe / "running").exists()
    second = shares.started(share=20)
    assert shares.trouble(second) == "the MPS server of the GPU has a fault"
    shares.sandbox.run("scancel", neighbour)
    wait_until(lambda: not (pipe / "running").exists())
    assert "fault" not in shares.trouble(shares.started(share=20))
    assert (pipe / "running").exists()
