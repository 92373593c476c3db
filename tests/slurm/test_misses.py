"""Forty ways to fail in a share: what lacked GPU memory runs once more with a whole GPU, and nothing else runs twice.

Each form is a batch script with `$TRAIN CODE`, a program on the GPU (tests/ends.py), and with `$OLD`, a log with an old
error in it. All forms run at once, beside each other on two GPUs, as on a busy node.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ends import give_training, sees_ends
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin
from slurm_jobs import GENEROUS, release, show_job, submit_share
from waiting import wait_until

pytestmark = pytest.mark.slurm

LIGHT = f"model={Path(__file__).parents[2] / 'examples' / 'models'}/dlrm.onnx,batch=8,mode=infer"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")


@dataclass(frozen=True, slots=True)
class Form:
    """A way to end.

    Attributes:
        name: In a few words.
        script: What the job runs.
        options: Of sbatch.
        short: Whether CI's short round has it.
    """

    name: str
    script: str
    options: tuple[str, ...] = ()
    short: bool = False


LLAMA = """
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5120.00 MiB on device 0: cudaMalloc failed: out of memory
llama_model_load: error loading model: unable to allocate CUDA0 buffer
main: error: unable to load model"""
ABORTS = "terminate called after throwing an instance of 'c10::Error'\\n  what():  CUDA out of memory."
MISSES = (
    Form("plain", "$TRAIN 'allocate()'", short=True),
    Form("redirected", "$TRAIN 'allocate()' >train-$SLURM_JOB_ID.log 2>&1", short=True),
    Form("redirected by hand", "$TRAIN 'allocate()' >mine.log 2>&1"),
    Form("appended to an old log", "$TRAIN 'allocate()' >>$OLD.1 2>&1"),
    Form("exit 0", "$TRAIN 'allocate()'; echo finished", short=True),
    Form("srun -o", "srun -o step-$SLURM_JOB_ID.log $TRAIN 'allocate()'"),
    Form("srun", "srun $TRAIN 'allocate()'"),
    Form("tee", "$TRAIN 'allocate()' 2>&1 | tee tee-$SLURM_JOB_ID.log", short=True),
    Form("a file of logging", "$TRAIN 'logging.basicConfig(filename=\"log-\" + os.environ[\"SLURM_JOB_ID\"]);\n"
         "time.sleep(1.5)\ntry: allocate()\nexcept Exception: logging.exception(\"failed\"); sys.exit(1)' 2>/dev/null"),
    Form("80 KB after the error", "$TRAIN 'try: allocate()\nexcept Exception:\n traceback.print_exc()\n"
         " print(\"at 0x7f00\\n\" * 8000); sys.exit(1)' || { yes done | head -c 80000; exit 1; }", short=True),
    Form("SIGABRT", f"$TRAIN 'lack(\"\"\"{ABORTS}\"\"\", 256 + 6)'; exit $?", short=True),
    Form("SIGABRT of the script", f"exec $TRAIN 'lack(\"\"\"{ABORTS}\"\"\", 256 + 6)'"),
    Form("a child killed after its words", "$TRAIN 'lack(\"torch.OutOfMemoryError: CUDA out of memory.\", 256 + 9)'"),
    Form("torchrun", "python3 -c 'import subprocess, sys\nstatus = subprocess.run(sys.argv[1:]).returncode\n"
         "if status: raise RuntimeError(f\"ChildFailedError: exitcode {status}\")' $TRAIN 'allocate()'", short=True),
    Form("in the background", "$TRAIN 'allocate()' & wait"),
    Form("a smaller batch as well", "$TRAIN 'allocate()' || $TRAIN 'allocate()'", short=True),
    Form("one of two ranks", "$TRAIN 'open(\"up-\" + os.environ[\"SLURM_JOB_ID\"], \"w\"); time.sleep(300)' & rank=$!\n"
         "until [ -e up-$SLURM_JOB_ID ]; do sleep 0.1; done\n"
         "$TRAIN 'allocate()'; status=$?; kill $rank; wait; exit $status"),
    Form("vLLM", "$TRAIN 'if share: raise ValueError(\"No available memory for the cache blocks.\")'", short=True),
    Form("llama.cpp", f"$TRAIN 'lack(\"\"\"{LLAMA}\"\"\")'", short=True),
    Form("ONNX Runtime", "$TRAIN 'allocate(\"Failed to allocate memory for requested buffer of size 1073741824\")'"),
    Form("a failure while handling it", "$TRAIN 'try: allocate()\nexcept RuntimeError: {}[\"batch\"]'"),
)  # fmt: skip
NON_FATAL = "W external/xla: Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB"
CAUGHT = 'try: raise OutOfMemoryError("CUDA out of memory.")\nexcept RuntimeError as e: print(e, flush=True)\n'
ORDINARY = (
    Form("ValueError", "$TRAIN 'raise ValueError(1)'", short=True),
    Form("KeyError after JAX's line", f"$TRAIN 'print(\"{NON_FATAL}\", flush=True); {{}}[\"x\"]'", short=True),
    Form("an array that appends to one log", "$TRAIN 'time.sleep(int(os.environ[\"SLURM_ARRAY_TASK_ID\"]))\n"
         'if os.environ["SLURM_ARRAY_TASK_ID"] == "2": print("CUDA out of memory"); time.sleep(2)\n'
         "else: sys.exit(1)' >>array.log 2>&1; exit 1", ("--array=1-3",), short=True),
    Form("an array with one output", "$TRAIN 'print(\"CUDA out of memory\", flush=True) if os.environ["
         "\"SLURM_ARRAY_TASK_ID\"] == \"2\" else sys.exit(1)'", ("--array=1-3", "--output=together.out")),
    Form("an old line in an appended log", "$TRAIN 'sys.exit(1)' >>$OLD.2 2>&1", short=True),
    Form("an old line in an appended output", "$TRAIN 'sys.exit(1)'", ("--output=old-output", "--open-mode=append")),
    Form("an old line that is printed", "cat $OLD.3; $TRAIN 'raise ValueError(2)'"),
    Form("an old line just before", "cat $OLD.3; $TRAIN 'sys.exit(3)'"),
    Form("caught, then another error", f"$TRAIN '{CAUGHT}raise ValueError(3)'", short=True),
    Form("caught, then an exception's line alone", f"$TRAIN '{CAUGHT}sys.exit(\"ValueError: no such label\")'"),
    Form("caught, then completed", f"$TRAIN '{CAUGHT}'", short=True),
    Form("coped by a smaller batch", "$TRAIN 'allocate()' || $TRAIN ''", short=True),
    Form("a smaller batch fails otherwise", "$TRAIN 'allocate()' || $TRAIN 'raise ValueError(4)'"),
    Form("a trial of a sweep", "$TRAIN 'over = \"over-\" + os.environ[\"SLURM_JOB_ID\"]\n"
         "while not os.path.exists(over): time.sleep(0.1)' &\n"
         "$TRAIN 'allocate()'; touch over-$SLURM_JOB_ID; wait", short=True),
    Form("a trial of a sweep that fails", "$TRAIN 'allocate()'; $TRAIN ''; exit 1"),
    Form("retries, then an error", "$TRAIN 'print(\"CUDA out of memory, retrying with batch 16\", flush=True)\n"
         "sys.exit(\"Error: --resume needs a checkpoint\")'"),
    Form("retries, then another program's words", "$TRAIN 'print(\"CUDA out of memory, retrying\", flush=True)\n"
         "sys.exit(\"cannot open labels.csv\")'"),
    Form("settings that are printed", "$TRAIN 'print(\"on_out_of_memory: raise\", flush=True)\n"
         "sys.exit(\"dataset not found\")'", short=True),
    Form("caught, then another program fails", f"$TRAIN '{CAUGHT}'; cp $TRAIN /nowhere/at/all", short=True),
    Form("caught long ago", f"$TRAIN '{CAUGHT}time.sleep(45); sys.exit(3)'"),
    Form("killed for the host's memory", "$TRAIN 'os.kill(os.getpid(), 9)'; exit 137"),
    Form("time limit", "$TRAIN 'time.sleep(300)'", ("--time=1",)),
    Form("scancel", "$TRAIN 'print(\"CUDA out of memory\", flush=True)\n"
         "subprocess.run([\"scancel\", os.environ[\"SLURM_JOB_ID\"]]); time.sleep(60)'"),
    Form("a missing program", "srun there-is-no-such-program"),
    Form("a missing script", "python3 there-is-no-such-script.py"),
    Form("NCCL", "$TRAIN 'raise RuntimeError(\"NCCL error: unhandled system error, NCCL version 2.21.5\")'"),
    Form("disk full", "$TRAIN 'raise OSError(28, \"No space left on device\")'"),
    Form("an assertion", "$TRAIN 'print(\"a.cc:1: Assertion `n > 0` failed.\", flush=True); os.abort()'"),
    Form("a device-side assertion", "$TRAIN 'raise RuntimeError(\"CUDA error: device-side assert triggered\")'"),
    Form("an illegal address", "$TRAIN 'raise RuntimeError(\"CUDA error: an illegal memory access\")'"),
    Form("the host's memory", "$TRAIN 'raise MemoryError(\"Unable to allocate 9 GiB for an array with shape 1\")'"),
    Form("the loader", "$TRAIN 'raise RuntimeError(\"DataLoader worker (pid 1) is killed by signal: Killed.\")'"),
    Form("no program on the GPU", "for i in $(seq 300); do [ -e $ENDS/$SLURM_JOB_ID ] || sleep 0.1; done\n"
         "echo 'CUDA out of memory'; python3 -c 'raise RuntimeError(\"CUDA out of memory\")'"),
    Form("the words after a success", "$TRAIN ''; echo 'torch.OutOfMemoryError: CUDA out of memory'; exit 1"),
    *(
        Form(f"exit {status}", f"$TRAIN 'sys.exit({status})'; exit {status}")
        for status in (1, 2, 126, 127, 134, 137, 139, 255)
    ),
    *(Form(f"signal {number}", f"exec $TRAIN 'os.kill(os.getpid(), {number})'") for number in (2, 6, 11, 15)),
)  # fmt: skip


@pytest.fixture(scope="module")
def sandbox(slurm_release: str | None) -> Iterator[Sandbox]:
    """Return a cluster with gpusage installed, whose node sees processes on its GPUs."""
    with start_sandbox(ClusterPlan(nodes=parse_nodes("1xv100:2,1xv100:2")), release=slurm_release) as sandbox:
        install_plugin(sandbox, "enforce", f"{GENEROUS}[learning]\nrefresh_s = 1\nenabled = false\n")
        yield sandbox


@pytest.fixture(scope="module")
def export(sandbox: Sandbox) -> str:
    """Return the option by which a job finds its program and the old log."""
    if not sees_ends():
        pytest.skip("the kernel does not tell this user how processes end")
    program, jobs = give_training(sandbox), sandbox.layout.jobs
    for name in ("old.1", "old.2", "old.3", "old-output"):
        (jobs / name).write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    return f"--export=ALL,TRAIN={program},OLD={jobs / 'old'},ENDS={sandbox.layout.state}/mps/ends"


def run(sandbox: Sandbox, export: str, forms: tuple[Form, ...]) -> dict[str, tuple[list[str], list[int]]]:
    """Run all *forms*, and return the states in which their jobs or tasks ended, and how often each restarted."""
    jobs: dict[str, str] = {}
    for form in forms:
        word = "".join(random.choices(string.ascii_lowercase, k=12))  # no job is like another
        options = (f"--job-name={word}", f"--comment={LIGHT}", export, "--open-mode=append", *form.options)
        jobs[form.name] = submit_share(sandbox, *options, wrap=f": {word}\n{form.script}")
    release(sandbox, *jobs.values())

    def ends() -> dict[str, tuple[list[str], list[int]]] | None:
        ends_by_form: dict[str, tuple[list[str], list[int]]] = {}
        for name, job in jobs.items():
            records = sandbox.run("scontrol", "--oneliner", "show", "job", job).stdout.splitlines()
            # 26.05 shows the command of sbatch, with its ends of lines.
            records = [record for record in records if record.startswith("JobId=")]
            fields = [dict(word.split("=", 1) for word in record.split() if "=" in word) for record in records]
            if not fields:
                return None  # slurmctld is busy
            ends_by_form[name] = ([each["JobState"] for each in fields], [int(each["Restarts"]) for each in fields])
        return ends_by_form if all(state in ENDED for states, _ in ends_by_form.values() for state in states) else None

    return wait_until(ends, lambda: {name: show_job(sandbox, job) for name, job in jobs.items()}, limit_s=600)


def check(sandbox: Sandbox, export: str, *, short: bool) -> None:
    forms = tuple(form for form in MISSES + ORDINARY if form.short or not short)
    wrong = run_wrong(sandbox, export, forms)
    # A machine that is too busy loses the one or the other; alone, none may be lost.
    assert not [form.name for form in wrong if run_wrong(sandbox, export, (form,))]


def run_wrong(sandbox: Sandbox, export: str, forms: tuple[Form, ...]) -> list[Form]:
    """Run *forms*, print the rates, and return those that ended as they should not."""
    ends = run(sandbox, export, forms)
    lost = [form for form in forms if form in MISSES and ends[form.name] != (["COMPLETED"], [1])]
    twice = [form for form in forms if form in ORDINARY and any(ends[form.name][1])]
    misses = sum(form in MISSES for form in forms)
    print(f"mended {misses - len(lost)} of {misses}, run twice {len(twice)} of {len(forms) - misses}")
    print({form.name: ends[form.name] for form in lost + twice})
    return lost + twice


@pytest.mark.short
def test_what_lacked_memory_runs_once_more_and_nothing_else_does(sandbox: Sandbox, export: str) -> None:
    check(sandbox, export, short=True)


@pytest.mark.nightly
def test_forty_forms(sandbox: Sandbox, export: str) -> None:
    check(sandbox, export, short=False)
