"""The task epilog, with a stand-in for scontrol: what it takes for "out of memory", and whose files it reads."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusage_slurm.install.node_scripts import TASK_EPILOG
from gpusage_slurm.jobs.queue import PROGRAM_MISSING
from gpusage_slurm.jobs.restore import OUT_OF_MEMORY
from waiting import LIMIT_S

SCONTROL = """#!/bin/sh
[ "$1" = show ] && exec cat "$STAND_IN/shown"
printf '%s\\n' "$@" >>"$STAND_IN/told"
case "$*" in
*"${FORBIDDEN:-none}"*) exit 1 ;;
*Gres=*StartTime=*) ;;
*Gres=*) echo "Job is no longer pending execution" ;;
esac
"""
STARVED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 2.20 GiB",
    "torch.cuda.OutOfMemoryError: CUDA out of memory.",
    "RuntimeError: CUDA error: out of memory",
    "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64,512]",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184",
    "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes",
    "cudaErrorMemoryAllocation: out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    "ValueError: Free memory on device (2/9 GiB) on startup is less than desired GPU memory utilization (0.9, 8 GiB)",
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5120.00 MiB on device 0: cudaMalloc failed: out of memory",
    "[ONNXRuntimeError] : 1 : FAIL : bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 1048576",
    "CUDA.jl: Out of GPU memory trying to allocate 2.000 GiB",
    'Kokkos failed to allocate memory for label "x::force". Allocation using MemorySpace named "Cuda" failed',
    "ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate 2.000000GB memory on GPU 0",
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "[ghost01] RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
    "CUDA out of memory.\nException ignored in: <f>\nTraceback (most recent call last):\n  f\nAttributeError: x",
    "CUDA out of memory.\nTraceback (most recent call last):\n  f\nConnectionResetError: by peer",
    (
        "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\nRuleException:\n"
        "CalledProcessError in file \"Snakefile\":\nCommand 'python train.py' returned non-zero exit status 1.\n"
        "WorkflowError:\nA job failed."
    ),
)
OTHERWISE = (
    "java.lang.OutOfMemoryError: Java heap space",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=12.batch.",
    "RuntimeError: CUDA error: device-side assert triggered",
    "grpc: RESOURCE_EXHAUSTED: quota of requests",
    "MemoryError",
    "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array with shape (100000, 100000)",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried 8",
    "OSError: [Errno 12] Cannot allocate memory",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "OSError: posix_fallocate failed: No space left on device",
    "ValueError: Not enough samples in replay memory",
    "OOM when allocating tensor with shape[9,9] on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
    "cv2.error: alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate 10782720000 bytes",
    "Error: cannot allocate vector of size 9.0 Gb",
    "ERROR: LoadError: OutOfMemoryError()",
    "MemoryError: Unable to allocate 1.1 GiB for an array",
    "pyarrow.lib.ArrowMemoryError: malloc of size 9 failed",
    "rank0 cuda:0 RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes",
    "usage: train.py --batch N (smaller if CUDA out of memory)",
    "W external/xla: Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB\nno key lr",
    "WARNING: cudaMalloc failed: out of memory\ncannot open input.dat",
    "CUDA out of memory, retrying with batch 16\ncannot open input.dat",
    "CUDA out of memory for batch 32\nError: --resume needs a checkpoint",
    "on_out_of_memory: raise\nlayers: 2\ndataset not found",
    "CUDA out of memory\nepoch 1\nepoch 2\nepoch 3\nepoch 4\nepoch 5",
    "srun: error: Unable to allocate resources: Requested node configuration is not available",
)


@dataclass(frozen=True)
class Node:
    """A node with a job on it; root's tests may run the job as somebody else."""

    folder: Path

    def end(
        self,
        output: Path,
        *,
        held: str = "mps:25",
        after: str = "gres/mps:25",
        prefix: str = "gres/",
        user: int | None = None,
        ends: str = "",
        **more: str,
    ) -> str:
        """Let the job's batch script end, of which the sampler wrote *ends*; return what scontrol was told to set."""
        (self.folder / "shown").write_text(
            "JobId=7 JobName=a b\n   JobState=RUNNING Reason=None\n   StartTime=2026-11-22T10:00:00 EndTime=Unknown\n"
            f"   AdminComment=site; gpusage 0123456789ab REWRITE gres/gpu:1 -> {after} | x \n"
            f"   TresPerNode={prefix}{held}\n   Comment=model=a.onnx \n"
            f"   StdErr={output}\n   StdIn=/dev/null\n   StdOut={output}\n"
        )
        reported = self.folder / "told"
        reported.write_text("")
        reported.chmod(0o666)
        path = f"{self.folder}:{os.environ['PATH']}"
        variables = {
            "SLURM_JOB_ID": "7",
            "GPUSAGE_DECISION": "mps:25",
            "STAND_IN": str(self.folder),
            "PATH": path,
        }
        is_direct = bool(ends) or user is not None
        command = ["sh", "-c", TASK_EPILOG.path.read_text()] if is_direct else [str(TASK_EPILOG.path)]
        timed = {"GPUSAGE_TIMED": "yes"} if is_direct else {}
        if ends:  # the shell's number is known before the shell is
            variables["GPUSAGE_MPS_FOLDER"] = str(self.folder)
            file = self.folder / "ends" / "7"
            file.parent.mkdir(exist_ok=True)
            command = ["sh", "-c", f'echo "{ends}read $$" >{file}; exec sh -c "$0"', command[-1]]
        subprocess.run(command, env={**variables, **timed, **more}, check=True, timeout=LIMIT_S, user=user, cwd="/")
        return reported.read_text()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="gpusage-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "scontrol").write_text(SCONTROL)
        (folder / "scontrol").chmod(0o755)
        yield Node(folder)


def written(node: Node, text: str) -> Path:
    output = node.folder / "slurm-7.out"
    output.write_text(text)
    return output


@pytest.mark.parametrize("line", STARVED)
def test_the_words_of_a_lack_are_known_and_the_user_is_told(node: Node, line: str) -> None:
    output = written(node, f"Traceback:\n{line}\nsome lines more\n")
    assert node.end(output) == f"update\nJobId=7\nComment=model=a.onnx {OUT_OF_MEMORY}\n"
    assert "gpusage: CUDA ran out of memory in this job's share of a GPU (mps:25," in output.read_text()


@pytest.mark.parametrize("line", OTHERWISE)
def test_other_words_are_not(node: Node, line: str) -> None:
    output = written(node, f"{line}\n")
    assert node.end(output) == ""
    assert output.read_text() == f"{line}\n"


SRUN = "slurmstepd: error: execve(): serve: No such file or directory\nsrun: error: n1: task 0: Exited with exit code 2"
SRUN_26_05 = SRUN.replace("slurmstepd:", "[2026-11-28T13:39:41.366]")
PYTHON = "python3: can't open file '/home/ada/trian.py': [Errno 2] No such file or directory"


@pytest.mark.parametrize("words", [SRUN, SRUN_26_05, PYTHON])
def test_a_program_that_is_missing_is_noted_and_the_share_is_not_blamed(node: Node, words: str) -> None:
    output = written(node, f"starting\n{words}\n")
    assert node.end(output) == f"update\nJobId=7\nComment=model=a.onnx {PROGRAM_MISSING}\n"
    assert node.end(written(node, f"{words}\nRuntimeError: later\n")) == ""  # it went on, and failed by itself


@pytest.mark.usefixtures("slurmstepd")
def test_a_program_that_failed_by_itself_is_not_missing(node: Node) -> None:
    """It ended with 1, and execve's error is 2."""
    assert PROGRAM_MISSING not in node.end(written(node, SRUN))


def test_only_the_end_counts(node: Node) -> None:
    """A job that coped with it once, long ago, failed for another reason."""
    assert node.end(written(node, STARVED[0] + "\nstep" * 10_000)) == ""


@pytest.fixture
def slurmstepd() -> Iterator[None]:
    """Tell whoever asks, as slurmstepd does, that the job's one task ended with status 1."""
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"{name}/node_7.4294967291")
        listener.listen()
        listener.settimeout(LIMIT_S)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                if not connection.recv(4, socket.MSG_WAITALL):
                    serve()  # that was a job 7 of another cluster on this host
                    return
                connection.sendall(struct.pack("=i", 0x7FFF))
                connection.recv(4, socket.MSG_WAITALL)
                connection.sendall(struct.pack("=IiIi?i", 1, 0, 0, 0, True, 1 << 8))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(LIMIT_S)


AGAIN = "Comment=model=a.onnx [out of GPU memory, started 2026-11-22T10:00:00, says gpusage]"


@pytest.mark.usefixtures("slurmstepd")
def test_the_comment_stands_before_the_job_is_requeued_so_that_no_second_run_does_it_again(node: Node) -> None:
    """Slurmstepd ends a task epilog after some seconds, and slurmctld may be slow."""
    messages = node.end(written(node, STARVED[0])).splitlines()
    assert messages[-9:] == [
        *("update", "JobId=7", AGAIN, "requeue", "7", "update", "JobId=7", "Gres=gpu:1", "StartTime=now+10"),
    ]


@pytest.mark.usefixtures("slurmstepd")
def test_a_job_whose_comment_has_no_room_is_not_requeued(node: Node) -> None:
    """It would be requeued again and again."""
    messages = node.end(written(node, STARVED[0]), FORBIDDEN=AGAIN).splitlines()
    assert "requeue" not in messages
    assert messages[-1] == f"Comment=model=a.onnx {OUT_OF_MEMORY}"


NO_LIBRARY = (
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed.",
)


@pytest.mark.parametrize("sign", ["near", "full", "gpu"])
@pytest.mark.parametrize("line", [*NO_LIBRARY, "cuDNN is initialized", "RuntimeError: x"])
def test_a_library_that_could_not_begin_lacked_memory_if_the_job_was_near_its_limit(
    node: Node, line: str, sign: str
) -> None:
    text = f"Traceback (most recent call last):\n  File x\n{line}\n"
    output = written(node, text)
    ends = f"gpu 9\nfailed 9 256 5\noutput 9 0 {len(text)} {len(text)} own {output}\n{sign} 8\n{sign} 9\n"
    updates = node.end(output, ends=ends.replace("gpu 8\ngpu 9\n", ""))
    assert ("requeue\n7\n" in updates) is (sign == "near" and line in NO_LIBRARY)


@pytest.mark.usefixtures("slurmstepd")
@pytest.mark.parametrize(("restarts", "is_first"), [("1", True), ("2", False)])
def test_a_start_that_was_turned_back_is_no_run(node: Node, restarts: str, is_first: bool) -> None:
    """Without a sampler only a first run's output is read."""
    updates = node.end(written(node, STARVED[0]), after="gres/mps:25, apart n1, start 2", SLURM_RESTART_COUNT=restarts)
    assert ("requeue" in updates) is is_first


@pytest.mark.parametrize("more", [{"GPUSAGE_DECISION": ""}, {"SLURM_STEP_ID": "0"}, {"SLURM_JOB_ID": "7; true"}])
def test_other_jobs_and_inner_steps_are_left_alone(node: Node, more: dict[str, str]) -> None:
    assert node.end(written(node, STARVED[0]), **more) == ""


def test_a_job_that_has_its_gpu_back_is_left_alone(node: Node) -> None:
    assert node.end(written(node, STARVED[0]), held="gpu:1") == ""


def test_the_batch_script_of_26_05_and_a_task_of_an_array(node: Node) -> None:
    task = {"SLURM_STEP_ID": "-5", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}
    output = written(node, STARVED[0])
    updates = node.end(output.rename(node.folder / "slurm-5_2.out"), **task)
    assert updates.splitlines()[:5] == [
        "update",
        "JobId=5",
        "Gres=gpu:1",
        "update",
        "JobId=5_2",
    ]  # those that wait first


SLICE = {"held": "gpu:3g.20gb:1", "after": "gres/gpu:3g.20gb:1, else h100", "GPUSAGE_DECISION": "gpu:3g.20gb:1"}


@pytest.mark.usefixtures("slurmstepd")
def test_a_slice_that_was_too_small_becomes_the_gpu_that_the_mark_names(node: Node) -> None:
    output = written(node, STARVED[0])
    requeued = ["requeue", "7", "update", "JobId=7", "Gres=gpu:h100:1", "StartTime=now+10"]
    assert node.end(output, **SLICE).splitlines()[-6:] == requeued
    assert "runs again by itself, once, with gres/gpu:h100:1." in output.read_text()


@pytest.mark.usefixtures("slurmstepd")
@pytest.mark.parametrize("change", [{"after": "gres/gpu:3g.20gb:1"}, {"prefix": "gres:"}], ids=["none larger", "22.05"])
def test_a_slice_for_which_there_is_no_larger_gpu_is_not_requeued(node: Node, change: dict[str, str]) -> None:
    """Up to 23.02 slurmctld would ask for both from then on."""
    updates = node.end(written(node, STARVED[0]), **(SLICE | change))
    assert "requeue" not in updates
    assert updates.endswith(f"{OUT_OF_MEMORY}\n")


def test_a_fifo_in_the_place_of_the_output_is_not_waited_for(node: Node) -> None:
    fifo = node.folder / "slurm-7.fifo"
    os.mkfifo(fifo)
    assert node.end(fifo) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run as somebody else")
def test_a_link_to_a_file_that_its_user_may_not_read_is_not_read(node: Node) -> None:
    """It is put in the place of the output, and ends in the words."""
    secret = written(node, STARVED[0]).rename(node.folder / "secret")
    secret.chmod(0o600)
    link = node.folder / "slurm-7.out"
    link.symlink_to(secret)
    assert node.end(link, user=65534) == ""
    assert secret.read_text() == STARVED[0]
    assert node.end(link, user=0) != ""


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_any_output_is_survived(node: Node, content: bytes) -> None:
    output = node.folder / "slurm-7.out"
    output.write_bytes(content)
    assert node.end(output) == ""
    assert output.read_bytes() == content
