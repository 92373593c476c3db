"""A share finds its own GPU or none: with a daemon and without, in containers, and in programs that parse numbers.

The GPUs are `walls.fake_gpus`, which see what NVIDIA's driver sees: the variables of a process, its MPS daemon, and the
device filter of its cgroup. Mount namespaces are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpusage_slurm
from gpusage.node.dividing.granted import read_granted
from walls import GPUS, FakeGpus, can_mount, fake_gpus, stand_in_tree

NODE = Path(gpusage_slurm.__file__).parent / "node"
SHARE = {"GPUSAGE_DECISION": "mps:40", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40", "GPUSAGE_NOTICE": "no"}
PARSES = "import os; print(int(os.environ['CUDA_VISIBLE_DEVICES']))"
"""What vLLM before June 2026, Ray, DeepSpeed and many scripts do."""
JOB = "7"


class Node:
    """A node of four GPUs, on each of which job 7 could have a share."""

    def __init__(self, folder: Path, gpus: FakeGpus, cgroup: Path) -> None:
        self.gpus, self.cgroup, self.root = gpus, cgroup, folder / "mps"

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run *command* in the job's cgroup."""
        inside = f'echo $$ >"{self.cgroup}/cgroup.procs"; exec "$@"'
        words = {"GPUSAGE_MPS_FOLDER": str(self.root), "SLURM_JOB_ID": JOB, "GPUSAGE_CUDA_LIBRARY": "/none.so"}
        return self.gpus.run("sh", "-c", inside, "sh", *command, **words, **variables)

    def prolog(self, device: str) -> None:
        """Give the job a share of GPU *device*."""
        share = {"CUDA_VISIBLE_DEVICES": device, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}
        limit = {"SLURM_JOB_UID": str(os.getuid()), "GPUSAGE_PROLOG_LIMIT_S": "60"}
        assert self.run(NODE / "prolog.sh", **share, **limit).returncode == 0
        granted = read_granted(JOB, folder=self.root)
        assert granted is not None
        assert granted.division == "percentage", granted

    def variables(self, slurm_gives: str) -> dict[str, str]:
        """Return the job's variables as Slurm and the task prolog set them."""
        lines = self.run(NODE / "task_prolog.sh", **SHARE, CUDA_VISIBLE_DEVICES=slurm_gives).stdout.splitlines()
        exports = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
        return {**SHARE, "CUDA_VISIBLE_DEVICES": slurm_gives, **exports}

    def gpu_of(self, *before: str, **variables: str) -> tuple[int | None, bool]:
        """Return which GPU a program computes on, if any, and whether as a client of MPS; *before* it runs."""
        done = self.run("sh", "-c", "".join((*before, "exec fake-gpu take 1")), **variables)
        answer = json.loads(done.stdout)
        places = [place for place, gpu in enumerate(GPUS) if gpu["uuid"] == answer.get("gpu")]
        return (places[0] if places else None, answer.get("mps", False))

    def parses(self, **variables: str) -> bool:
        """Return whether a script that takes the variable for a number runs."""
        return self.run(sys.executable, "-c", PARSES, **variables).returncode == 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    for name in ("cgroup", "bin"):
        (tmp_path / name).mkdir()
    tree = stand_in_tree(tmp_path / "cgroup", "job_7")
    with fake_gpus(tmp_path / "bin", cgroups=str(tree), tree=True) as gpus:
        yield Node(tmp_path, gpus, tree / "job_7")


@pytest.mark.parametrize(
    ("device", "constrained", "parses"),
    [("0", False, True), ("3", False, False), ("0", True, True), ("3", True, True)],
)
def test_a_job_finds_its_own_gpu_with_mps_and_without(node: Node, device: str, constrained: bool, parses: bool) -> None:
    """With ConstrainDevices Slurm says 0; elsewhere the GPU's number, and only 0 is right with a daemon and without.

    So a script that parses a number fails where the job's GPU is not the node's first and Slurm does not constrain.
    """
    node.prolog(device)
    if constrained:
        node.gpus.constrain(node.cgroup, int(device))
    variables = node.variables("0" if constrained else device)
    assert node.gpu_of(**variables) == (int(device), True)
    (node.root / f"gpu-{GPUS[int(device)]['uuid']}" / "pipe" / "running").unlink()  # its daemon has died
    assert node.gpu_of(**variables) == (int(device), False)
    assert node.parses(**variables) is parses


@pytest.mark.skipif(not can_mount(), reason="needs mount namespaces, as root has them")
@pytest.mark.parametrize(("device", "constrained"), [("0", False), ("3", False), ("3", True)])
def test_in_a_container_a_job_finds_its_own_gpu_and_with_the_folder_its_daemon(
    node: Node, device: str, constrained: bool
) -> None:
    """The namespace hides the folder below /run, as enroot's and Apptainer's do; a bind mount brings it back."""
    node.prolog(device)
    if constrained:
        node.gpus.constrain(node.cgroup, int(device))
    variables = node.variables("0" if constrained else device)
    enter = f"exec unshare -m sh -c 'mount --bind {node.root} /mnt && mount -t tmpfs none {node.root} && "
    bind = f"mount --bind /mnt {node.root} && "
    assert node.gpu_of(enter, "exec fake-gpu take 1'; ", **variables) == (int(device), False)
    assert node.gpu_of(enter, bind, "exec fake-gpu take 1'; ", **variables) == (int(device), True)


def test_a_container_that_shows_other_gpus_alone_gives_a_job_none(node: Node) -> None:
    node.prolog("3")
    variables = node.variables("3")
    node.gpus.constrain(node.cgroup, 0, 1)
    (node.root / f"gpu-{GPUS[3]['uuid']}" / "pipe" / "running").unlink()
    assert node.gpu_of(**variables) == (None, False)


def test_an_inner_step_finds_the_same_gpu(node: Node) -> None:
    """Slurm gives it the number anew, hides it by a binding, or leaves what the batch script had."""
    node.prolog("3")
    batch = node.variables("3")
    for slurm_gives in ("3", "", batch["CUDA_VISIBLE_DEVICES"]):
        words = {**batch, "CUDA_VISIBLE_DEVICES": slurm_gives, "SLURM_STEP_ID": "0"}
        lines = node.run(NODE / "task_prolog.sh", **words).stdout.splitlines()
        assert lines[-1] == f"export CUDA_VISIBLE_DEVICES={GPUS[3]['uuid']}"
