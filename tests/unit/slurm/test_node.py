"""The scripts that run on a node, with a stand-in for NVIDIA's control daemon; none of it needs a GPU."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import gpusage_slurm
from gpusage.node.dividing.granted import NOT_READ_BACK, read_granted
from gpusage_hooks.types import Allocation
from mps import GPU, commands_sent, control_in, driver_in
from waiting import LIMIT_S, wait_until

NODE = Path(gpusage_slurm.__file__).parent / "node"


class Node:
    """A node with a folder of its own for MPS, and a stand-in for the control daemon."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "mps"
        self.control = control_in(folder)

    def run(self, script: str, job: int, *, prefix: tuple[str, ...] = (), **environment: str) -> list[str]:
        """Run *script* for *job*, and return what it printed; it must end well whatever happens."""
        done = subprocess.run(
            [*prefix, NODE / script],
            check=True,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={
                "PATH": os.environ["PATH"],
                "GPUSAGE_MPS_FOLDER": str(self.root),
                "GPUSAGE_MPS_CONTROL": str(self.control),
                "GPUSAGE_CUDA_LIBRARY": str(self.root.parent / "libcuda.so.1"),
                "SLURM_JOB_ID": str(job),
                "GPUSAGE_PROLOG_LIMIT_S": "60",  # this machine may be busy
                "GPUSAGE_LIMIT_S": "60",
                **environment,
            },
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    def prolog(self, job: int, *, device: str = "0", user: int = 1000, **environment: str) -> None:
        """Run the prolog for a job that shares *device*."""
        share = {"CUDA_VISIBLE_DEVICES": device, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40", "SLURM_JOB_UID": str(user)}
        self.run("prolog.sh", job, **{**share, **environment})

    def epilog(self, job: int) -> None:
        """Run the epilog for *job*."""
        self.run("epilog.sh", job)

    def commands_sent(self) -> list[str]:
        """Return what the control command was told."""
        return commands_sent(self.control)

    def runs(self, device: str = "0") -> bool:
        """Return whether the daemon of *device* runs."""
        return (self.root / f"gpu-{device}" / "pipe" / "running").exists()

    def granted(self, job: int) -> Allocation | None:
        """Return what *job* was given."""
        return read_granted(str(job), folder=self.root, sm_count=132)

    def serves(self, job: int) -> bool:
        """Return whether *job* was given a daemon."""
        return (self.root / "jobs" / str(job)).exists()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_first_share_starts_a_daemon_and_the_last_one_stops_it(node: Node) -> None:
    node.prolog(7)
    node.prolog(8)
    starts = [line for line in node.commands_sent() if line.startswith("-d")]
    assert starts == ["-d device=0 ceiling=none"]
    assert node.serves(7)
    assert node.serves(8)
    node.epilog(7)
    assert node.runs()
    node.epilog(8)
    assert not node.runs()
    assert not node.serves(8)


def test_each_gpu_has_a_daemon_of_its_own(node: Node) -> None:
    node.prolog(7, device="0")
    node.prolog(8, device="GPU-8932f937-d72c-4106")
    assert node.runs("0")
    assert node.runs("GPU-8932f937-d72c-4106")
    node.epilog(7)
    assert not node.runs("0")
    assert node.runs("GPU-8932f937-d72c-4106")


def test_a_daemon_serves_one_user_alone_until_that_users_last_job_has_gone(node: Node) -> None:
    node.prolog(7, user=1000)
    node.prolog(8, user=1001)
    node.prolog(9, user=1000)
    assert (node.serves(7), node.serves(8), node.serves(9)) == (True, False, True)
    for job in (7, 9, 8):
        node.epilog(job)
    node.prolog(10, user=1001)
    assert node.serves(10)


def test_a_daemon_serves_every_user_where_the_site_wants_that(node: Node) -> None:
    node.prolog(7, user=1000, GPUSAGE_ACROSS_USERS="yes")
    node.prolog(8, user=1001, GPUSAGE_ACROSS_USERS="yes")
    assert (node.serves(7), node.serves(8)) == (True, True)
    assert "-d -multiuser-server device=0 ceiling=none" in node.commands_sent()


def test_a_control_command_that_knows_no_multiuser_server_serves_one_user(node: Node) -> None:
    for job, user in ((7, 1000), (8, 1001), (9, 1000)):
        node.prolog(job, user=user, GPUSAGE_ACROSS_USERS="yes", SINGLE_USER_ONLY="1")
    assert (node.serves(7), node.serves(8), node.serves(9)) == (True, False, True)


def test_a_daemon_that_another_users_jobs_left_behind_is_stopped(node: Node) -> None:
    node.prolog(7, user=1000)
    (node.root / "gpu-0" / "jobs" / "7").unlink()  # its epilog could not get the lock
    (node.root / "users" / "0" / "7").unlink()
    node.prolog(8, user=1001)
    assert not node.serves(8)
    assert not node.runs()
    node.prolog(9, user=1001)
    assert node.serves(9)


@pytest.mark.parametrize("earlier", [False, True])
def test_no_user_can_hold_the_lock_on_a_gpu(node: Node, earlier: bool) -> None:  # pytest's
    """Whoever can open a file can lock it; one `flock` of a user kept the others from MPS, and cost each job 8 s."""
    lock = node.root / "gpu-0" / "lock"
    if earlier:  # as an older prolog made it
        lock.parent.mkdir(parents=True)
        lock.touch(0o644)
    node.prolog(7)
    assert lock.stat().st_mode & 0o777 == 0o600
    assert (lock.parent / "pipe").stat().st_mode & 0o777 == 0o755


def test_a_daemon_does_not_hold_the_lock_on_its_gpu(node: Node) -> None:
    node.prolog(7, STANDIN_STAYS="yes")
    held = int(node.control.with_name("nvidia-cuda-mps-control.pid").read_text())  # the stand-in's daemon, still there
    os.kill(held, 0)
    node.prolog(8)  # would wait 5 s and give up
    assert node.serves(8)
    os.kill(held, 15)


@pytest.mark.parametrize(
    "environment",
    [
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": ""},  # a whole GPU
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "0,1"},
        {"CUDA_VISIBLE_DEVICES": "../../etc"},
        {"SLURM_JOB_ID": "../7"},
        {"GPUSAGE_MPS_CONTROL": "no-such-command"},
        {"GPUSAGE_MPS_CONTROL": "false"},
        {"GPUSAGE_MPS_FOLDER": "/proc/nowhere"},
    ],
)
def test_what_is_no_share_or_cannot_be_served_is_left_to_itself(node: Node, environment: dict[str, str]) -> None:
    node.prolog(7, **environment)
    assert not node.runs()
    assert not (node.root / "jobs").exists() or not any((node.root / "jobs").iterdir())


def test_a_folder_in_the_place_of_a_jobs_file_is_no_failure(node: Node) -> None:
    (node.root / "gpu-0" / "jobs" / "7").mkdir(parents=True)
    node.prolog(7)
    assert not node.serves(7)


@pytest.mark.parametrize("blocked", ["jobs/7", "gpu-0/user"])
def test_a_job_that_cannot_be_written_down_goes_without_and_leaves_no_daemon(node: Node, blocked: str) -> None:
    (node.root / blocked / "a folder in its place").mkdir(parents=True)
    node.prolog(7)
    assert not node.runs()
    assert "quit" in node.commands_sent()
    node.epilog(7)


def test_a_job_that_cannot_be_written_down_leaves_the_daemon_to_the_others(node: Node) -> None:
    node.prolog(7)
    (node.root / "jobs" / "8").mkdir()
    node.prolog(8)
    assert node.runs()
    node.epilog(7)
    assert not node.runs()


def test_on_a_full_disk_a_job_goes_without_and_leaves_no_daemon(node: Node) -> None:
    full = "trap '' XFSZ; ulimit -f 0; exec \"$0\""  # each byte that is written is one too many
    share = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}
    node.run("prolog.sh", 7, prefix=("sh", "-c", full), **share)
    assert not node.serves(7)
    assert not node.runs()


def test_an_epilog_that_takes_the_last_job_out_leaves_the_next_one_its_place(node: Node) -> None:
    node.prolog(7)
    with (node.root / "gpu-0" / "lock").open("w") as lock, ThreadPoolExecutor() as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first = pool.submit(node.epilog, 7)
        while (node.root / "gpu-0" / "jobs" / "7").exists():
            time.sleep(0.01)
        second = pool.submit(node.prolog, 8)
        wait_for_the_lock(node, 2)
        fcntl.flock(lock, fcntl.LOCK_UN)
        first.result()
        second.result()
    assert node.serves(8)
    assert node.runs()
    node.epilog(8)
    assert not node.runs()


def test_jobs_that_end_at_once_find_no_fault_in_the_daemon_that_one_of_them_stopped(node: Node) -> None:
    for job in (7, 8):
        node.prolog(job)
    with (node.root / "gpu-0" / "lock").open("w") as lock, ThreadPoolExecutor() as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ends = [pool.submit(node.epilog, job) for job in (7, 8)]
        wait_for_the_lock(node, 2)
        fcntl.flock(lock, fcntl.LOCK_UN)
        for end in ends:
            end.result()
    assert not node.runs()
    for job in (7, 8):
        assert "answer" not in (node.root / "granted" / f"{job}.json").read_text()


def wait_for_the_lock(node: Node, count: int) -> None:
    """Wait until *count* scripts wait for the lock on GPU 0."""
    inode = f":{(node.root / 'gpu-0' / 'lock').stat().st_ino} "

    def count_waiting() -> int:
        return sum("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())

    wait_until(lambda: count_waiting() >= count)


def test_a_gpu_that_hangs_in_the_kernel_holds_the_node_no_longer_than_the_limit(node: Node, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    real = shutil.which("timeout")
    # A `timeout` that cannot end nvidia-smi, as none can end what sleeps uninterruptibly.
    (programs / "timeout").write_text(f'#!/bin/sh\ncase $* in *nvidia-smi*) exec sleep 60 ;; esac\nexec {real} "$@"\n')
    (programs / "timeout").chmod(0o755)
    began_s = time.monotonic()
    node.prolog(7, PATH=f"{programs}:{os.environ['PATH']}", GPUSAGE_PROLOG_LIMIT_S="1")
    assert time.monotonic() - began_s < 50
    assert not node.serves(7)
    assert node.granted(7) == Allocation(share_percent=40, trouble="the GPU did not answer within 1 s")


def test_an_epilog_of_a_job_that_was_never_served_does_nothing(node: Node) -> None:
    node.prolog(7)
    node.epilog(99)
    node.run("epilog.sh", 7, SLURM_JOB_ID="../jobs/7")
    assert node.runs()


def test_a_forged_job_file_leads_nowhere(node: Node, tmp_path: Path) -> None:
    node.prolog(7)
    (node.root / "jobs" / "7").write_text(f"{tmp_path}\n")
    (tmp_path / "jobs").mkdir()
    node.epilog(7)
    assert (tmp_path / "jobs").is_dir()


GROWTH = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
OURS = {"GPUSAGE_NOTICE": "no", "GPUSAGE_DECISION": "mps:40", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}


def test_the_task_prolog_leaves_the_request_that_the_user_wrote_but_for_its_binding(node: Node) -> None:
    request = {"SLURM_GPUS": "1", "SLURM_TRES_PER_TASK": "gres/gpu=1", "SLURM_TRES_BIND": "gres/gpu:per_task:1"}
    output = node.run("task_prolog.sh", 7, **OURS, **request, **GROWTH, CUDA_VISIBLE_DEVICES="1")
    assert output == ["export GPUSAGE_JOB=7", "unset SLURM_TRES_BIND", "export GPUSAGE_DEVICE=1"]


@pytest.mark.parametrize(("wished", "granted"), [("80", "80"), ("100", "100"), ("40", ""), ("20", ""), ("1e9", "")])
def test_the_site_may_let_a_job_use_more_threads_than_its_share_and_never_fewer(
    node: Node, wished: str, granted: str
) -> None:
    lines = node.run("task_prolog.sh", 7, **OURS, GPUSAGE_THREAD_PERCENT=wished)
    raised = [line for line in lines if "THREAD_PERCENTAGE" in line]
    assert raised == ([f"export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={granted}"] if granted else [])


@pytest.mark.parametrize(
    ("restarts", "line"), [("2", "unset SLURM_RESTART_COUNT"), ("5", "export SLURM_RESTART_COUNT=3")]
)
def test_starts_that_were_turned_back_are_no_restarts_for_its_script(
    node: Node, tmp_path: Path, restarts: str, line: str
) -> None:
    """Neither for one that has its whole GPU by now."""
    scontrol = tmp_path / "scontrol"
    for mark in ("REWRITE gres/gpu:1 -> gres/mps:40, apart n1, start 3", "BACK gres/mps:40 -> gres/gpu:1, start 3"):
        scontrol.write_text(f"#!/bin/sh\necho '   AdminComment=site; gpusage 0123456789ab {mark} | it met job 12'\n")
        scontrol.chmod(0o755)
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_RESTART_COUNT": restarts}
        assert line in node.run("task_prolog.sh", 7, **OURS, **path)


def test_a_device_that_slurm_hides_from_a_step_is_shown_again(node: Node) -> None:
    output = node.run("task_prolog.sh", 7, **OURS, GPUSAGE_JOB="7", GPUSAGE_DEVICE="1", CUDA_VISIBLE_DEVICES="")
    assert "export CUDA_VISIBLE_DEVICES=1" in output


def test_where_no_wall_is_a_share_lets_jax_and_tensorflow_take_only_what_they_use(node: Node) -> None:
    """Each sees the whole GPU's size; a second task finds what the first has, and keeps it."""
    variables = client(node, 7)
    assert GROWTH.items() <= variables.items()
    assert not GROWTH.keys() & client(node, 7, **GROWTH, GPUSAGE_GROWTH=variables["GPUSAGE_GROWTH"]).keys()


@pytest.mark.parametrize("name", ["XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", *GROWTH])
def test_what_the_user_says_of_jax_or_tensorflow_holds(node: Node, name: str) -> None:
    others = {"TF_FORCE_GPU_ALLOW_GROWTH"} if name.startswith("XLA") else {"XLA_PYTHON_CLIENT_PREALLOCATE"}
    variables = client(node, 7, **{name: "0.4"})
    assert GROWTH.keys() & variables.keys() == others
    assert variables["GPUSAGE_GROWTH"] == f"7,{others.pop()}"


def test_behind_a_wall_programs_see_their_own_part_and_nothing_is_said_to_them(node: Node) -> None:
    (node.root / "walls").mkdir(parents=True)
    (node.root / "walls" / "7").write_text("wall 12 1 /sys/fs/cgroup/job_7\n")
    assert not [name for name in client(node, 7) if "GROWTH" in name or "XLA" in name]


def test_a_job_submitted_inside_a_share_is_told_nothing_of_it(node: Node) -> None:
    """Its user had set the first; the second is ours."""
    inner = {**GROWTH, "GPUSAGE_GROWTH": "6,TF_FORCE_GPU_ALLOW_GROWTH"}
    assert node.run("task_prolog.sh", 7, **inner) == ["unset TF_FORCE_GPU_ALLOW_GROWTH", "unset GPUSAGE_GROWTH"]


def test_marks_of_a_job_in_which_this_one_was_asked_for_are_taken_away(node: Node) -> None:
    output = node.run("task_prolog.sh", 7, **OURS, GPUSAGE_JOB="6", CUDA_MPS_PIPE_DIRECTORY="/run/x")
    assert output[0] == "unset GPUSAGE_DECISION"
    assert {"unset GPUSAGE_JOB", "unset CUDA_MPS_PIPE_DIRECTORY"} < {*output}
    assert all(line.startswith("unset ") for line in output)


@pytest.mark.parametrize("device", ["1", GPU])
def test_a_job_may_use_its_part_of_the_memory_of_the_gpu_that_it_got(node: Node, tmp_path: Path, device: str) -> None:
    """40 % of 81,559 MiB, less 256 and less 1,223; what was decided before the GPU was known was less."""
    node.prolog(7, device=device, PATH=nvidia_smi(tmp_path, f"{GPU}, 81559"))
    decided = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6144M", "CUDA_VISIBLE_DEVICES": device}
    assert "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=32032M" in node.run("task_prolog.sh", 7, **OURS, **decided)
    granted = node.granted(7)
    assert granted is not None
    assert granted.memory_limit_bytes == 32_032 << 20


@pytest.mark.parametrize("shown", ["", f"{GPU}, [N/A]", f"{GPU}, 200", "No devices were found"])
def test_a_node_that_cannot_tell_its_memory_leaves_the_cap_that_was_decided(
    node: Node, tmp_path: Path, shown: str
) -> None:
    node.prolog(7, PATH=nvidia_smi(tmp_path, shown))
    lines = node.run("task_prolog.sh", 7, **OURS, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=6144M")
    assert not [line for line in lines if "MEM_LIMIT" in line]


def test_the_first_task_of_a_job_that_shows_its_model_finds_our_sitecustomize_first(node: Node, tmp_path: Path) -> None:
    learn = {"SLURM_GPUSAGE_LEARN": "/home/u/.cache/gpusage/runs/7", "GPUSAGE_ON_START": str(tmp_path)}
    assert node.run("task_prolog.sh", 7, **learn) == []  # nothing is there
    (tmp_path / "sitecustomize.py").touch()
    exports = ["export GPUSAGE_LEARN=/home/u/.cache/gpusage/runs/7", "export GPUSAGE_LEARN_JOB=SLURM_JOB_ID"]
    assert node.run("task_prolog.sh", 7, **learn) == [*exports, f"export PYTHONPATH={tmp_path}"]
    assert node.run("task_prolog.sh", 7, **learn, PYTHONPATH="/lib") == [*exports, f"export PYTHONPATH={tmp_path}:/lib"]
    assert node.run("task_prolog.sh", 7, **learn, PYTHONPATH=f"/lib:{tmp_path}") == exports
    assert node.run("task_prolog.sh", 7, **learn, SLURM_PROCID="1", GPUSAGE_LEARN="/r") == ["unset GPUSAGE_LEARN"]
    inner = {**learn, "SLURM_GPUSAGE_LEARN": ""}  # submitted inside a job that shows its model
    assert node.run("task_prolog.sh", 7, **inner, GPUSAGE_LEARN="/r") == ["unset GPUSAGE_LEARN"]


def test_the_task_prolog_says_nothing_in_a_job_that_is_not_ours(node: Node) -> None:
    environment = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1M"}
    assert node.run("task_prolog.sh", 7, **environment, SLURM_GPUS="1") == []


def test_where_a_job_of_ours_holds_no_share_its_cap_is_taken_away(node: Node) -> None:
    """It got its whole GPU back, which an MPS daemon of its user's own would hold to the cap."""
    environment = {"GPUSAGE_DECISION": "mps:40", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1M"}
    assert node.run("task_prolog.sh", 7, **environment) == ["unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]


def test_the_task_prolog_takes_away_what_job_submit_could_only_empty(node: Node) -> None:
    emptied = {"GPUSAGE_DECISION": "", "GPUSAGE_CARD": "", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ""}
    assert node.run("task_prolog.sh", 7, **emptied) == [f"unset {name}" for name in emptied]


def test_the_task_prolog_leads_to_the_daemon_that_the_prolog_started(node: Node) -> None:
    node.prolog(7)
    folder = node.root / "gpu-0"
    assert node.run("task_prolog.sh", 7, **OURS, CUDA_VISIBLE_DEVICES="0")[-4:] == [
        "export GPUSAGE_DEVICE=0",
        f"export CUDA_MPS_PIPE_DIRECTORY={folder}/pipe",
        f"export CUDA_MPS_LOG_DIRECTORY={folder}/log",
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
    ]
    node.epilog(7)
    assert not [line for line in node.run("task_prolog.sh", 7, **OURS) if "CUDA_MPS" in line]


def nvidia_smi(folder: Path, text: str) -> str:
    """Return a PATH on which nvidia-smi prints *text*, in which ``$2`` is the GPU that it is asked for."""
    smi = folder / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\necho "{text}"\n')
    smi.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("slurm_gives", "job_sees"),
    [
        ("3", "GPU-3"),  # its number on the node: a program that finds no daemon would take it for another GPU
        ("0", "0"),  # with ConstrainDevices Slurm counts from 0 what the job may open
        ("", "GPU-3"),  # hidden from a step by a binding
    ],
)
def test_a_job_sees_its_own_gpu_with_a_daemon_and_without(
    node: Node, tmp_path: Path, slurm_gives: str, job_sees: str
) -> None:
    node.prolog(7, device="3", PATH=nvidia_smi(tmp_path, "GPU-$2, [N/A]"))
    variables = client(node, 7, CUDA_VISIBLE_DEVICES=slurm_gives, GPUSAGE_DEVICE="3")
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] == f"{node.root}/gpu-GPU-3/pipe"
    assert variables.get("CUDA_VISIBLE_DEVICES", slurm_gives) == job_sees
    assert variables.get("GPUSAGE_DEVICE", "") == slurm_gives


def test_the_first_gpu_of_a_node_keeps_its_number(node: Node, tmp_path: Path) -> None:
    """A script that parses an integer runs there, and on each node with one GPU."""
    node.prolog(7, device="0", PATH=nvidia_smi(tmp_path, "GPU-$2, [N/A]"))
    assert "CUDA_VISIBLE_DEVICES" not in client(node, 7, CUDA_VISIBLE_DEVICES="0")


def test_a_gpu_whose_uuid_nobody_knows_is_not_shared_through_mps(node: Node, tmp_path: Path) -> None:
    node.prolog(7, device="3", PATH=nvidia_smi(tmp_path, "No devices were found"))
    assert node.granted(7) == Allocation(share_percent=40, trouble="nvidia-smi shows no UUID of the GPU")
    assert client(node, 7, CUDA_VISIBLE_DEVICES="3", **GROWTH).keys() == {"GPUSAGE_JOB", "GPUSAGE_DEVICE"}


def stand_in_daemon(node: Node, device: str = "0") -> subprocess.Popen[bytes]:
    """Start a process that has the control daemon's folder and is in its PID file."""
    pipe = node.root / f"gpu-{device}" / "pipe"
    daemon = subprocess.Popen(["sleep", "60"], env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)})
    (pipe / "nvidia-cuda-mps-control.pid").write_text(f"{daemon.pid}\n")
    return daemon


def test_a_job_whose_daemon_has_died_runs_without_mps_on_its_own_gpu(node: Node, tmp_path: Path) -> None:
    path = nvidia_smi(tmp_path, "GPU-$2, [N/A]")
    node.prolog(7, device="3", PATH=path)
    daemon = stand_in_daemon(node, "GPU-3")
    assert client(node, 7, CUDA_VISIBLE_DEVICES="3")["CUDA_VISIBLE_DEVICES"] == "GPU-3"
    daemon.kill()
    daemon.wait()
    assert client(node, 7, CUDA_VISIBLE_DEVICES="3", **GROWTH).keys() == {"GPUSAGE_JOB", "GPUSAGE_DEVICE"}
    (node.root / "gpu-GPU-3" / "pipe" / "running").unlink()
    record = node.root / "granted" / "7.json"
    record.write_text('{"division":"percentage","share_percent":40,"thread_percent":40,"trouble":""}\n')
    node.epilog(7)
    assert "the MPS daemon of the GPU did not answer at the end of the job" in record.read_text()


@pytest.fixture
def left_behind() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process of job 7 that is still there at its epilog."""
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "SLURM_JOB_ID": "7"}) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_the_epilog_ends_what_its_job_left_on_the_gpu_and_nothing_else(
    node: Node, left_behind: subprocess.Popen[bytes], protocol: str
) -> None:
    """The others are a neighbour's client, and a number that no process has."""
    for job in (7, 8):
        node.prolog(job, GPUSAGE_MPS_PROTOCOL=protocol, STANDIN_VERSION="13040")
    clients = node.root / "gpu-0" / "pipe" / "clients"
    others = f"50 {os.getpid()}\n50 4194305\n"
    clients.write_text(f"50 {left_behind.pid}\n{others}")
    node.epilog(7)
    assert clients.read_text() == others
    assert node.runs()


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_a_server_with_a_fault_is_left_to_its_clients_and_gets_no_new_one(node: Node, protocol: str) -> None:
    newer = {"GPUSAGE_MPS_PROTOCOL": protocol, "STANDIN_VERSION": "13040"}
    for job in (7, 8):
        node.prolog(job, **newer)
    pipe = node.root / "gpu-0" / "pipe"
    (pipe / "clients").write_text(f"50 {os.getpid()}\n")
    (pipe / "status").write_text("FAULT\n")
    node.epilog(7)
    assert node.runs()
    node.prolog(9, **newer)
    assert node.granted(9) == Allocation(share_percent=40, trouble="the MPS server of the GPU has a fault")
    assert node.runs()
    node.epilog(8)
    assert not node.runs()
    node.prolog(10, **newer)
    assert node.serves(10)


def test_a_daemon_that_does_not_answer_is_killed_at_the_end_of_its_last_job(node: Node) -> None:
    for job in (7, 8):
        node.prolog(job)
    daemon = stand_in_daemon(node)
    hangs = {"STANDIN_HANGS": "yes", "GPUSAGE_LIMIT_S": "2"}
    node.run("epilog.sh", 7, **hangs)
    assert daemon.poll() is None
    node.run("epilog.sh", 8, **hangs)
    assert daemon.wait(LIMIT_S) == -signal.SIGKILL
    node.prolog(9)
    assert node.serves(9)


def test_a_process_that_has_a_dead_daemons_number_is_left_alone(
    node: Node, left_behind: subprocess.Popen[bytes]
) -> None:
    node.prolog(7)
    (node.root / "gpu-0" / "pipe" / "nvidia-cuda-mps-control.pid").write_text(f"{left_behind.pid}\n")
    node.run("epilog.sh", 7, STANDIN_HANGS="yes", GPUSAGE_LIMIT_S="2")
    with pytest.raises(subprocess.TimeoutExpired):
        left_behind.wait(0.2)


PROGRAM_OF_SLO = {"SLURM_JOB_COMMENT": "model=r.onnx,mode=infer,slo=50ms"}
NEWER = {"STANDIN_VERSION": "13010"}


def client(node: Node, job: int, **environment: str) -> dict[str, str]:
    """Return the variables that the task prolog gives *job*."""
    lines = node.run("task_prolog.sh", job, **OURS, **environment)
    return dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """Return a stand-in for the CUDA driver, where the prolog of `Node` finds it."""
    library = driver_in(tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    tmp_path.chmod(0o755)  # another user's client reads it
    return library


def test_what_a_job_was_given_is_written_down_and_outlives_it(node: Node) -> None:
    node.prolog(7)
    allocation = node.granted(7)
    assert allocation is not None
    assert allocation.trouble.startswith(NOT_READ_BACK)  # and why, where the job's user has a Python
    assert replace(allocation, trouble="") == Allocation(division="percentage", share_percent=40, thread_percent=40)
    node.epilog(7)
    assert node.granted(7) == allocation


OWN = os.getuid()  # whose client can look into pytest's folders


def test_records_are_kept_for_a_day_and_while_their_jobs_run(node: Node) -> None:
    for job in (7, 8, 9):
        node.prolog(job)
    node.epilog(8)
    node.epilog(9)
    two_days_ago_s = time.time() - 2 * 86400
    for job in (7, 8):
        os.utime(node.root / "granted" / f"{job}.json", (two_days_ago_s, two_days_ago_s))
    node.prolog(10)
    assert [node.granted(job) is not None for job in (7, 8, 9)] == [True, False, True]


def test_a_job_on_whole_gpus_has_no_record_of_an_earlier_start_on_a_share(node: Node) -> None:
    """A requeued job, or another with its number: its usage named the earlier share until November 2026."""
    node.prolog(7)
    node.epilog(7)
    assert node.granted(7) is not None
    node.prolog(7, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="")
    assert node.granted(7) is None
    assert list((node.root / "granted").glob("7.*")) == []


@pytest.mark.usefixtures("driver")
def test_what_a_client_sees_is_read_back(node: Node) -> None:
    node.prolog(7, user=OWN, GPUSAGE_MEMORY_MIB="4096")
    # 132 SMs * 40 % = 52.8, of which the client sees 52: 39.4 % of 132, and at most 40
    assert node.granted(7) == Allocation(
        division="percentage", share_percent=40, thread_percent=40, limited_by="cap", memory_limit_bytes=4 * 2**30
    )


@pytest.mark.usefixtures("driver")
def test_a_client_that_no_daemon_holds_is_found_out(node: Node) -> None:
    node.prolog(7, user=OWN, STANDIN_FORGETS="yes")
    granted = node.granted(7)
    assert granted is not None
    assert (granted.division, granted.thread_percent) == ("whole", None)
    assert granted.trouble == "no MPS daemon holds the client: it sees all SMs"


@pytest.mark.skipif(OWN != 0, reason="root alone can be another user")
def test_the_client_that_looks_is_the_jobs_user_not_root(node: Node, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "setpriv").write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/asked\n')
    (programs / "setpriv").chmod(0o755)
    node.prolog(7, user=1000, SLURM_JOB_GID="1001", PATH=f"{programs}:{os.environ['PATH']}")
    assert (tmp_path / "asked").read_text().startswith("--reuid=1000 --regid=1001 --clear-groups python3 -I -S ")


def test_a_site_may_let_a_job_use_more_than_its_share(node: Node) -> None:
    node.prolog(7)
    assert client(node, 7, GPUSAGE_THREAD_PERCENT="70")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "70"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in client(node, 7, GPUSAGE_THREAD_PERCENT="170")
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in client(node, 7, GPUSAGE_THREAD_PERCENT="7; reboot")


@pytest.mark.usefixtures("driver")
def test_a_job_with_a_latency_limit_gets_sms_of_its_own_where_mps_can_give_them(node: Node) -> None:
    node.prolog(7, device=GPU, user=OWN, **PROGRAM_OF_SLO, **NEWER)
    node.prolog(8, device=GPU, user=OWN, **NEWER)
    first, second = client(node, 7), client(node, 8)
    assert f"-d -S device={GPU} ceiling=none" in node.commands_sent()
    # 40 % of 16 chunks are 6.4: up to 7 for the job with the limit, down to 6 for the one beside it; 8 of 132 SMs each
    assert first["CUDA_MPS_SM_PARTITION"] == f"{GPU}/Dx1AAAA"
    assert second["CUDA_MPS_SM_PARTITION"] == f"{GPU}/Dx2AAAA"
    assert first["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
    percents = {job: (granted := node.granted(job)) and (granted.division, granted.thread_percent) for job in (7, 8)}
    assert percents == {7: ("partition", 43), 8: ("partition", 37)}  # 56 of 132, 48 of 132, rounded up
    node.epilog(7)
    assert (node.root / f"gpu-{GPU}" / "pipe" / "partitions").read_text() == "Dx2AAAA 6\n"
    node.epilog(8)
    assert not node.runs(GPU)


def test_where_mps_is_too_old_a_latency_limit_is_kept_by_percentage(node: Node) -> None:
    node.prolog(7, device=GPU, **PROGRAM_OF_SLO)
    granted = node.granted(7)
    assert granted is not None
    assert (granted.division, granted.thread_percent) == ("percentage", 40)
    assert granted.trouble.startswith("the GPU is divided by percentage, not by partitions")


def test_a_gpu_whose_sms_cannot_be_cut_is_divided_by_percentage(node: Node) -> None:
    node.prolog(7, device=GPU, STANDIN_CHUNKS="none", **PROGRAM_OF_SLO, **NEWER)
    granted = node.granted(7)
    assert granted is not None
    assert granted.division == "percentage"
    assert [line for line in node.commands_sent() if line.startswith("-d")][-1] == f"-d device={GPU} ceiling=none"


def test_a_job_for_which_no_sms_are_left_runs_without_mps(node: Node) -> None:
    node.prolog(7, device=GPU, **PROGRAM_OF_SLO, **NEWER, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100")
    node.prolog(8, device=GPU, **NEWER)
    assert (node.serves(7), node.serves(8)) == (True, False)
    assert node.granted(8) == Allocation(share_percent=40, trouble="no SMs were free for a partition")
    node.epilog(7)
    assert not node.runs(GPU)


@pytest.mark.usefixtures("driver")
def test_under_static_partitioning_a_client_without_a_partition_is_found_out(node: Node) -> None:
    node.prolog(7, device=GPU, user=OWN, STANDIN_FORGETS="yes", **PROGRAM_OF_SLO, **NEWER)
    granted = node.granted(7)
    assert granted is not None
    assert granted.trouble == "a client cannot start: cuInit ended with 915"


def test_with_mps_v3_each_job_has_a_namespace_whose_limits_the_daemon_keeps(node: Node) -> None:
    newer = {"GPUSAGE_MPS_PROTOCOL": "3", "STANDIN_VERSION": "13040", "GPUSAGE_MEMORY_MIB": "4096"}
    for job in (7, 8):
        node.prolog(job, device=GPU, **newer)
    pipe = node.root / f"gpu-{GPU}" / "pipe" / "gpusage"
    assert client(node, 7)["CUDA_MPS_PIPE_DIRECTORY"] == str(pipe / "job7")
    limits = "--server=gpusage --active-thread-percentage=40 --client-priority=1 --pinned-memory-limit=4096M"
    assert (pipe / "job7" / "limits").read_text() == f"namespace set job7 {limits}\n"
    assert f"server create gpusage --uid=1000 --allowed-devices={GPU}" in node.commands_sent()
    node.epilog(7)
    assert [each.name for each in pipe.glob("job*")] == ["job8"]
    node.epilog(8)
    assert not node.runs(GPU)


def test_where_mps_knows_no_v3_the_daemon_speaks_v2(node: Node) -> None:
    node.prolog(7, GPUSAGE_MPS_PROTOCOL="3")
    assert node.serves(7)
    assert node.commands_sent()[-1] == "get_server_list"


def test_a_daemon_that_died_and_left_its_pipe_is_started_again(node: Node) -> None:
    node.prolog(7)
    pipe = node.root / "gpu-0" / "pipe"
    (pipe / "running").rename(pipe / "stale")
    node.prolog(8)
    assert node.serves(8)
    assert node.runs()


def test_what_another_boot_left_is_forgotten(node: Node, tmp_path: Path) -> None:
    boot = tmp_path / "boot"
    boot.write_text("one\n")
    node.prolog(7, user=1000, GPUSAGE_BOOT_ID=str(boot))
    boot.write_text("two\n")
    node.prolog(8, user=1001, GPUSAGE_BOOT_ID=str(boot))
    assert node.serves(8)
    node.epilog(8)  # the last one: what was there before the boot has no job any more
    assert not node.runs()


@pytest.mark.parametrize(
    ("environment", "trouble"),
    [
        ({"GPUSAGE_MPS_CONTROL": "no-such-command"}, "MPS is not on this node"),
        ({"STANDIN_FAILS": "yes"}, "MPS could not be started"),
    ],
)
def test_the_record_says_why_a_job_runs_without_mps(node: Node, environment: dict[str, str], trouble: str) -> None:
    node.prolog(7, **environment)
    assert not node.serves(7)
    assert node.granted(7) == Allocation(share_percent=40, trouble=trouble)


def test_a_daemon_that_hangs_is_left_alone_and_costs_a_job_its_mps_alone(node: Node) -> None:
    node.prolog(7)
    began_s = time.monotonic()
    node.prolog(8, STANDIN_HANGS="yes", GPUSAGE_PROLOG_LIMIT_S="1")
    assert time.monotonic() - began_s < 50
    assert node.runs()
    assert node.granted(8) == Allocation(share_percent=40, trouble="the MPS daemon of the GPU does not answer")


def test_another_users_job_is_told_so(node: Node) -> None:
    node.prolog(7, user=1000)
    node.prolog(8, user=1001)
    assert node.granted(8) == Allocation(share_percent=40, trouble="the MPS daemon of the GPU serves another user")


def test_a_daemon_that_an_earlier_release_started_is_used(node: Node) -> None:
    node.prolog(7)
    for name in ("division", "boot"):
        (node.root / "gpu-0" / name).unlink()
    node.prolog(8)
    granted = node.granted(8)
    assert granted is not None
    assert (granted.division, granted.thread_percent) == ("percentage", 40)
    assert node.serves(7)


def test_two_jobs_at_once_share_one_daemon(node: Node) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(node.prolog, range(7, 13)))
    assert len([line for line in node.commands_sent() if line.startswith("-d")]) == 1
    with ThreadPoolExecutor() as pool:
        list(pool.map(node.epilog, range(7, 13)))
    assert not node.runs()


@pytest.mark.parametrize(
    ("more", "has_message"), [({}, True), ({"GPUSAGE_NOTICE": "no"}, False), ({"SLURM_STEP_ID": "0"}, False)]
)
def test_a_jobs_output_says_once_that_it_has_a_share(node: Node, more: dict[str, str], has_message: object) -> None:
    share = {"GPUSAGE_DECISION": "mps:40", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40", **more}
    line = "print gpusage: this job has a share of a GPU, gres/mps:40: 'gpusage decisions 7' says why."
    assert (line in node.run("task_prolog.sh", 7, **share)) is has_message
    task = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}
    of_task = line.replace("decisions 7", "decisions 5_1")
    assert (of_task in node.run("task_prolog.sh", 7, **share, **task)) is has_message
