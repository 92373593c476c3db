"""A wall around a job's memory: `gpusage-mps` with a stand-in for nvidia-smi, and trees like the kernel's.

On real Slurm, `tests/slurm/test_wall.py` tries the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpusage_slurm
from gpusage.node.dividing.granted import read_granted
from gpusage.node.dividing.programs import Offers, parse_offers
from mps import GPU, PROGRAM, commands_sent, control_in, waiting_for_cgroups
from waiting import LIMIT_S, wait_until

NODE = Path(gpusage_slurm.__file__).parent / "node"
JOB = "77124"  # no other test's: samplers look at every process of the machine
PART_MIB = 32_032  # 40 % of 81,559 MiB less 256 and less 1,223
SMI = r"""#!/bin/sh
case $* in
    *--set*) [ -z "${REFUSES:-}" ] && sleep "${SLOW_S:-0}" && echo "$6 $8" >"$4.limit" ;;
    *--get*) echo "Hard limit: ${SHOWS:-$(cut -d ' ' -f 2 "$4.limit")} MiB" && echo "Current Used: ${USED:-0} MiB" ;;
    *mig.mode*) printf '%b\n' "${SMI_SHOWS-615.71.05, [N/A]}" ;;
    *) echo "GPU-8932f937-d72c-4106, 81559" ;;
esac
"""


def limit_of(cgroup: Path) -> Path:
    """Return the file in which the stand-in keeps the limits of *cgroup*: soft and hard, in MiB."""
    return cgroup.with_name(f"{cgroup.name}.limit")


class Node:
    """A node on which Slurm has made its scope, and a job's cgroup once the job has started."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cgroups, self.proc = folder / "mps", folder / "cgroup", folder / "proc"
        self.scope = self.cgroups / "system.slice" / "slurmstepd.scope"
        self.scope.mkdir(parents=True)
        for group in (self.cgroups, self.scope.parent, self.scope):
            (group / "cgroup.controllers").write_text("cpu memory dmem\n")
            (group / "cgroup.subtree_control").write_text("cpu memory\n")
        self.proc.mkdir()
        (folder / "bin").mkdir()
        (folder / "bin" / "nvidia-smi").write_text(SMI)
        (folder / "bin" / "nvidia-smi").chmod(0o755)
        self.control = control_in(folder)
        self.environment = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "GPUSAGE_MPS_FOLDER": str(self.root),
            "GPUSAGE_MPS_CONTROL": str(self.control),
            "GPUSAGE_CGROUP_FOLDER": str(self.cgroups),
            "GPUSAGE_PROC_FOLDER": str(self.proc),
            "GPUSAGE_CUDA_LIBRARY": "/none.so",
            "GPUSAGE_LIMIT_S": "60",
            "GPUSAGE_PROLOG_LIMIT_S": "60",
        }

    def run(self, *command: str | Path, **environment: str) -> str:
        """Return what *command* prints; whatever happens, it ends well."""
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**self.environment, "SLURM_JOB_ID": JOB, **environment},
        )
        assert done.stderr == ""
        return done.stdout

    def prolog(self, **environment: str) -> None:
        """Run the prolog of the job, which has 40 % of a GPU."""
        share = {"CUDA_VISIBLE_DEVICES": GPU, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40", "SLURM_JOB_UID": "1000"}
        self.run(NODE / "prolog.sh", **share, **environment)

    def task_prolog(self) -> str:
        """Return what the task prolog prints for a task of the job."""
        ours = {"GPUSAGE_NOTICE": "no", "GPUSAGE_DECISION": "mps:40", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}
        return self.run(NODE / "task_prolog.sh", **ours, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=6144M")

    def start_step(
        self, title: str = f"{JOB}.batch", *, name: str = f"job_{JOB}", program: str = "slurmstepd-wlm"
    ) -> Path:
        """Let a step's slurmstepd begin, and return the job's cgroup."""
        (self.scope / name / "step_batch" / "slurm").mkdir(parents=True, exist_ok=True)
        process = self.proc / str(100 + len([*self.proc.iterdir()]))
        process.mkdir()
        (process / "exe").symlink_to(f"/usr/sbin/{program}")
        (process / "status").write_text(f"Name:\t{program}\nUid:\t{os.getuid()}\t0\t0\t0\n")
        (process / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/{name}/step_batch/slurm\n")
        (process / "cmdline").write_text(f"slurmstepd-wlm: [{title}]\0")  # the last: who sees it reads the others
        return self.scope / name

    def state(self) -> str:
        """Return the first word of what the job's file in `walls` says; empty where no wall was announced."""
        file = self.root / "walls" / JOB
        return file.read_text().split()[0] if file.exists() else ""

    def held(self) -> tuple[str, int | None, str]:
        """Return what limits the memory of the job, and to how many MiB, and its trouble."""
        granted = read_granted(JOB, folder=self.root)
        assert granted is not None
        limit = granted.memory_limit_bytes
        return granted.limited_by, limit and limit >> 20, granted.trouble


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    (node.root / "walls" / JOB).unlink(missing_ok=True)  # who waits for the job's cgroup gives up


@pytest.mark.parametrize("name", [f"job_{JOB}", "s1QK7JX2Z2R400"])  # 26.05 names a job's cgroup by its SLUID
def test_a_share_is_a_wall_before_its_first_task_runs(node: Node, name: str) -> None:
    node.prolog()
    assert node.state() == "wait"
    cgroup = node.start_step(name=name)
    printed = node.task_prolog()
    assert limit_of(cgroup).read_text() == f"0 {PART_MIB}\n"
    assert node.state() == "wall"
    assert node.held()[:2] == ("wall", PART_MIB)
    # Beside a wall, a limit of MPS would show a program the whole GPU's size.
    assert "unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" in printed
    assert "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in printed


def test_each_folder_above_the_job_hands_dmem_down_and_the_job_does_not(node: Node) -> None:
    node.prolog()
    cgroup = node.start_step()
    (cgroup / "cgroup.controllers").write_text("dmem\n")
    wait_until(lambda: node.state() == "wall")
    for group in (node.cgroups, node.scope.parent, node.scope):
        assert (group / "cgroup.subtree_control").read_text() == "+dmem\n"
    assert not (cgroup / "cgroup.subtree_control").exists()


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"REFUSES": "yes"}, "the driver did not take the limit of the job's cgroup"),
        ({"SHOWS": "81559"}, "the driver did not take the limit of the job's cgroup"),
    ],
)
def test_where_the_driver_does_not_keep_the_limit_a_job_has_a_cap(
    node: Node, environment: dict[str, str], why: str
) -> None:
    node.prolog(**environment)
    node.start_step()
    assert f"export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={PART_MIB}M" in node.task_prolog()
    limited_by, limit_mib, trouble = node.held()
    assert (limited_by, limit_mib) == ("cap", PART_MIB)
    assert trouble.startswith(why)


def test_a_task_waits_for_a_slow_driver_no_longer_than_it_must(node: Node) -> None:
    node.prolog(SLOW_S="20")
    cgroup = node.start_step()
    assert f"export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={PART_MIB}M" in node.task_prolog()
    assert not limit_of(cgroup).exists()


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"SLOW_S": "2"}, "the job's memory was limited too late for its first task"),
        ({"USED": str(PART_MIB + 1)}, f"the job had taken {PART_MIB + 1} MiB before its memory was limited"),
    ],
)
def test_what_came_before_the_wall_is_written_down(node: Node, environment: dict[str, str], why: str) -> None:
    node.prolog(**environment)
    node.start_step()
    wait_until(lambda: node.state() == "wall")
    limited_by, limit_mib, trouble = node.held()
    assert (limited_by, limit_mib) == ("wall", PART_MIB)
    assert trouble.startswith(why)


def test_a_title_that_a_user_forged_is_not_believed(node: Node) -> None:
    node.prolog()
    node.start_step(name="job_8", program="python3")
    time.sleep(0.2)
    assert node.state() == "wait"
    node.start_step()
    wait_until(lambda: node.state() == "wall")
    assert not limit_of(node.scope / "job_8").exists()


def test_a_job_that_ends_first_ends_who_waits_for_it(node: Node) -> None:
    node.prolog()
    wait_until(lambda: len(waiting_for_cgroups(node.root)) == 1)
    node.run(NODE / "epilog.sh")
    wait_until(lambda: not waiting_for_cgroups(node.root))
    assert node.state() == ""


def test_a_requeued_job_has_a_wall_of_its_own_and_a_part_that_is_given_back_none(node: Node) -> None:
    node.prolog()
    cgroup = node.start_step()
    wait_until(lambda: node.state() == "wall")
    node.run(NODE / "epilog.sh")
    assert node.state() == ""
    limit_of(cgroup).unlink()
    assert "MEM_LIMIT=" not in node.task_prolog()
    node.prolog()
    wait_until(lambda: node.state() == "wall")
    assert limit_of(cgroup).read_text() == f"0 {PART_MIB}\n"


def test_a_run_that_was_requeued_does_not_speak_for_the_next(node: Node) -> None:
    node.prolog()
    (first,) = wait_until(lambda: waiting_for_cgroups(node.root))
    node.prolog()  # its epilog was lost
    wait_until(lambda: waiting_for_cgroups(node.root) not in ([], [first]))
    wait_until(lambda: first not in waiting_for_cgroups(node.root))
    assert len(waiting_for_cgroups(node.root)) == 1


def test_a_job_that_mps_does_not_serve_has_a_wall_too(node: Node) -> None:
    node.prolog(GPUSAGE_MPS_CONTROL="no-such-program")
    # Who waits for the cgroup does not hold the lock.
    subprocess.run(["flock", "--wait", "10", node.root / f"gpu-{GPU}" / "lock", "true"], check=True, timeout=60)
    node.start_step()
    wait_until(lambda: node.state() == "wall")
    assert node.held() == ("wall", PART_MIB, "MPS is not on this node")


def test_a_namespace_has_no_memory_limit_beside_a_wall(node: Node) -> None:
    node.prolog(GPUSAGE_MPS_PROTOCOL="3", STANDIN_VERSION="13040")
    sets = [line for line in commands_sent(node.control) if line.startswith("namespace set")]
    assert len(sets) == 1
    assert "--pinned-memory-limit" not in sets[0]


@pytest.mark.parametrize(
    ("environment", "offered"),
    [
        ({}, Offers(limited_by="wall")),
        ({"SMI_SHOWS": "620.11, Enabled\\n620.11, Disabled"}, Offers(limited_by="wall")),
        (
            {"SMI_SHOWS": "570.86.10, [N/A]"},
            Offers(because="the driver limits no cgroup's memory, as it does since r615 (here 570.86.10)"),
        ),
        ({"SMI_SHOWS": ""}, Offers(because="nvidia-smi tells no driver")),
        ({"SMI_SHOWS": "615.71, Enabled"}, Offers(because="the GPU is divided by MIG, in hardware")),
        ({"GPUSAGE_CGROUP_FOLDER": "/none"}, Offers(because="cgroup v2 is not at /none")),
    ],
    ids=["all is there", "one GPU without MIG", "an old driver", "no driver", "MIG", "cgroup v1"],
)
def test_a_node_says_what_limits_memory_and_why_not_more(
    node: Node, environment: dict[str, str], offered: Offers
) -> None:
    without_mps = {"GPUSAGE_MPS_CONTROL": "no-such-program"}
    assert parse_offers(node.run(PROGRAM, "offers", **without_mps, **environment)) == offered
    with_mps = parse_offers(node.run(PROGRAM, "offers", **environment))
    assert with_mps.limited_by == ("wall" if offered.limited_by == "wall" else "cap")
    assert with_mps.because == offered.because


def test_a_node_whose_jobs_slurm_keeps_in_no_cgroup_has_no_wall(node: Node) -> None:
    node.scope.rename(node.scope.with_name("sshd.service"))
    node.prolog()
    assert node.state() == ""
    assert json.loads((node.root / "granted" / f"{JOB}.json").read_text())["limited_by"] == "cap"
    offers = parse_offers(node.run(PROGRAM, "offers"))
    assert offers.because == "Slurm keeps its jobs in no cgroup v2 (slurmstepd.scope)"
