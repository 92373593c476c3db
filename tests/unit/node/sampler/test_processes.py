"""The processes of one job: real ones, and a copy of what the kernel says of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpusage.node.sampler.processes import Consumption, JobProcesses, ProcessSelector
from waiting import wait_until

BUSY = "import time; s = time.process_time()\nwhile time.process_time() < s + 0.4: pass"
IDENTITY = ProcessSelector(variable="SLURM_JOB_ID=77123", cgroups=("job_77123", "sEHDM8KXBQ0B00"), uid=os.geteuid())


def started(code: str, job: str = "77123") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "SLURM_JOB_ID": job})


def test_a_variable_of_the_jobs_own_processes_is_read() -> None:
    processes, name = JobProcesses(IDENTITY), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    assert processes.variable(name) is None
    environment = {**os.environ, "SLURM_JOB_ID": "77123", name: "0=2870M"}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE) as own:
        wait_until(processes.refresh)
        assert (processes.variable(name), processes.variable(name[:-1])) == ("0=2870M", None)
        own.kill()


def test_a_jobs_processes_are_found_and_what_they_used_outlives_them() -> None:
    processes = JobProcesses(IDENTITY)
    assert processes.refresh() == frozenset()
    assert processes.consumption() == Consumption()
    other, own = started("input()", job="77124"), started(f"{BUSY}\ninput()")
    try:
        wait_until(lambda: (processes.consumption().cpu_s or 0) >= 0.4 or (processes.refresh() and False))
        assert processes.refresh() == {own.pid}
    finally:
        for each in (other, own):
            each.kill()
            each.wait()
    used_s = processes.consumption().cpu_s
    assert processes.refresh() == frozenset()
    assert used_s is not None
    assert processes.consumption().cpu_s == used_s


def test_a_childs_time_is_counted_once(tmp_path: Path) -> None:
    """Its parent counts it once it has waited for it."""
    done = tmp_path / "done"
    child = (
        f"import pathlib, subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])\n"
        f"pathlib.Path({str(done)!r}).touch(); input()"
    )
    processes, own = JobProcesses(IDENTITY), started(child)
    try:
        wait_until(lambda: processes.refresh() is not None and done.exists())
        processes.refresh()
        assert 0.4 <= (processes.consumption().cpu_s or 0) < 0.8
    finally:
        own.kill()
        own.wait()


class Kernel:
    """A folder like /proc, and one like /sys/fs/cgroup."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        self.proc.mkdir()

    def process(
        self, pid: int, *, cgroup: str = "0::/", environ: str = "", read_bytes: int = 0, parent: int = 1
    ) -> None:
        """Let there be a process."""
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "cgroup").write_text(f"{cgroup}\n")
        (folder / "environ").write_bytes(environ.encode())
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} " + "0 " * 9 + "100 0 0 0 20")
        (folder / "io").write_text(f"rchar: 99\nread_bytes: {read_bytes}\n")
        (folder / "comm").write_text("nvidia-cuda-mps\n")

    def job(self, uid: int | None = None) -> JobProcesses:
        """Return the processes of job 5."""
        identity = ProcessSelector(
            variable="SLURM_JOB_ID=5", cgroups=("job_5",), uid=os.geteuid() if uid is None else uid
        )
        return JobProcesses(identity, self.proc, self.groups)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


SCOPE = "system.slice/slurmstepd.scope/job_5"
CGROUPS = {
    "v2": (f"0::/{SCOPE}/step_0/user/task_0", f"{SCOPE}/cpu.stat", "usage_usec 7000000\nuser_usec 1"),
    "v1": ("4:cpu,cpuacct:/slurm/job_5/step_0", "cpu,cpuacct/slurm/job_5/cpuacct.usage", "7000000000\n"),
}


@pytest.mark.parametrize(("cgroup", "file", "text"), CGROUPS.values(), ids=CGROUPS)
def test_the_kernels_own_count_of_a_job_is_taken(kernel: Kernel, cgroup: str, file: str, text: str) -> None:
    """It has the processes that came and went between two looks, too."""
    kernel.process(10, cgroup=cgroup, read_bytes=4096)
    (kernel.groups / file).parent.mkdir(parents=True)
    (kernel.groups / file).write_text(text)
    processes = kernel.job()
    assert processes.refresh() == {10}
    assert processes.consumption() == Consumption(cpu_s=7.0, read_bytes=4096)


def test_a_process_that_ends_between_two_looks_together_with_its_parent_counts(kernel: Kernel) -> None:
    """Whichever was seen first: at a job's end, an order that nobody chose lost all that its script's children used."""
    processes = kernel.job()
    for pid, parent in ((11, 10), (10, 1)):
        kernel.process(pid, environ="SLURM_JOB_ID=5\0", parent=parent)
        assert pid in processes.refresh()
    for pid in (10, 11):
        shutil.rmtree(kernel.proc / str(pid))
    assert processes.refresh() == frozenset()
    assert processes.consumption().cpu_s == 2 * 100 / os.sysconf("SC_CLK_TCK")


def test_a_job_whose_number_begins_alike_is_another(kernel: Kernel) -> None:
    kernel.process(10, cgroup="0::/system.slice/slurmstepd.scope/job_55/step_0", environ="SLURM_JOB_ID=55\0A=B")
    kernel.process(11, environ="MY_SLURM_JOB_ID=5\0")
    assert kernel.job().refresh() == frozenset()


def test_another_users_process_is_none_of_the_jobs_whatever_it_says(kernel: Kernel) -> None:
    kernel.process(10, environ="SLURM_JOB_ID=5\0")
    assert kernel.job(uid=os.geteuid() + 1).refresh() == frozenset()
    assert kernel.job().refresh() == {10}


def test_a_process_that_was_just_forked_is_looked_at_again(kernel: Kernel) -> None:
    processes = kernel.job()
    kernel.process(10)
    assert processes.refresh() == frozenset()
    kernel.process(10, environ="SLURM_JOB_ID=5\0")
    assert processes.refresh() == {10}


def test_a_server_of_mps_is_known_by_its_name(kernel: Kernel) -> None:
    kernel.process(10)
    assert kernel.job().is_server(10)
    assert not kernel.job().is_server(11)
