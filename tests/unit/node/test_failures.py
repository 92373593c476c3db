"""What the node records of a job's failed processes on the GPU, told by this machine's own kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ends import sees_ends
from gpusage.node.sampler import failures
from gpusage.node.sampler.failures import GROWN_S, LAST_WORDS_S, FailureRecorder
from gpusage.node.sampler.processes import ProcessSelector
from gpusage_hooks.types import Allocation
from waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.skipif(not sees_ends(), reason="the kernel does not tell this user how processes end")

ON_GPU = """import os, sys, time
device = open('gpu/nvidia0')
while 'MY_JOB' in os.environ and f'gpu {os.getpid()}\\n' not in open('ends').read(): time.sleep(0.02)
"""
"""What a program on the GPU does first. CUDA takes longer to start than a busy machine takes to note it."""
UNTIL_GO = "import os, sys, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
FORK = """import os, time
if os.fork():
    os.wait()
else:
    open('forked', 'w').close()
    while os.path.exists('forked'): time.sleep(0.02)
"""
CAP = Allocation(memory_limit_bytes=1000, limited_by="cap")


@dataclass(frozen=True)
class Job:
    """A job on a node; its programs run in *folder*."""

    folder: Path
    recorder: FailureRecorder

    def start(self, code: str, output: int = subprocess.DEVNULL, *, of_job: bool = True) -> subprocess.Popen[bytes]:
        """Start a Python program of the job."""
        environment = {"MY_JOB": "7"} if of_job else {}
        command = [sys.executable, "-IS", "-c", code]
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=output, stderr=output)

    def run(self, code: str, output: int = subprocess.DEVNULL, *, of_job: bool = True) -> int:
        """Run a program to its end, and return its number."""
        program = self.start(code, output, of_job=of_job)
        program.wait(LIMIT_S)
        return program.pid

    def release(self) -> None:
        """Let the programs that wait by `UNTIL_GO` go on."""
        (self.folder / "go").touch()

    def lines(self) -> list[str]:
        """Return what was recorded so far, without times, as a job's task epilog reads it."""
        ends = self.folder / "ends"
        reader = subprocess.Popen(["cat", ends], stdout=subprocess.DEVNULL)
        reader.wait(LIMIT_S)
        wait_until(lambda: f"read {reader.pid}" in ends.read_text().splitlines())
        lines = [line for line in ends.read_text().splitlines() if not line.startswith("read ")]
        return [" ".join(line.split()[:3]) if line.startswith("failed ") else line for line in lines]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    devices = tmp_path / "gpu"
    devices.mkdir()
    (devices / "nvidia0").write_text("")
    selector = ProcessSelector(variable="MY_JOB=7", cgroups=(), uid=os.geteuid())
    recorder = FailureRecorder(tmp_path / "ends", selector, devices)
    recorder.start()
    yield Job(tmp_path, recorder)
    recorder.close()
    assert not (tmp_path / "ends").exists()


def test_a_failed_process_on_the_gpu_is_recorded_with_its_last_words(job: Job) -> None:
    with (job.folder / "log").open("wb") as log:
        log.write(b"of before\n")
        log.flush()
        pid = job.run(ON_GPU + "print('last words', flush=True); sys.exit(3)", log.fileno())
    output = f"output {pid} 10 21 21 own {job.folder}/log"
    assert job.lines() == [f"gpu {pid}", f"failed {pid} {3 << 8}", output]


def test_a_signal_is_an_end_too(job: Job) -> None:
    pid = job.run(ON_GPU + "os.kill(os.getpid(), 9)")
    assert job.lines() == [f"gpu {pid}", f"failed {pid} 9"]


def test_neither_success_nor_a_process_off_the_gpu_nor_another_job_is_a_failure(job: Job) -> None:
    pid = job.run(ON_GPU)
    job.run("raise SystemExit(1)")
    job.run(ON_GPU + "sys.exit(1)", of_job=False)
    assert job.lines() == [f"gpu {pid}", f"well {pid}"]


def test_who_outlives_a_failure_is_known(job: Job) -> None:
    longer = job.start(ON_GPU + UNTIL_GO)
    wait_until(lambda: f"gpu {longer.pid}" in job.lines())
    pid = job.run(ON_GPU + "sys.exit(1)")
    job.release()
    longer.wait(LIMIT_S)
    lines = [f"gpu {longer.pid}", f"gpu {pid}", f"failed {pid} 256", f"well {longer.pid}"]
    assert [line for line in job.lines() if not line.startswith("output")] == lines


def test_a_process_that_only_the_counters_show_counts(job: Job) -> None:
    program = job.start(UNTIL_GO + "raise SystemExit(1)")
    job.recorder.note_memory({program.pid: 5}, CAP)
    job.release()
    program.wait(LIMIT_S)
    assert job.lines() == [f"gpu {program.pid}", f"failed {program.pid} 256"]


def test_a_file_to_which_another_process_appends_is_not_named(job: Job) -> None:
    with (job.folder / "log").open("ab") as log:
        # Not the test's own child: those may be the job's, until they have its marks.
        other = job.start(FORK, log.fileno(), of_job=False)
        wait_until((job.folder / "forked").exists)
        pid = job.run(ON_GPU + "print('words'); sys.exit(1)", log.fileno())
        with_other = job.lines()
        before_exec = subprocess.Popen(["sleep", "60"], stdout=log)
        (job.folder / "forked").unlink()
        other.wait(LIMIT_S)
        second = job.run(ON_GPU + "print('words'); sys.exit(1)", log.fileno())
        lines = job.lines()
        before_exec.kill()
        before_exec.wait(LIMIT_S)
    assert with_other == [f"gpu {pid}", f"failed {pid} 256"]
    # The test and its child have the file open as well; it started the job's processes, as slurmstepd does.
    assert f"output {second} 6 12 12 appended {job.folder}/log" in lines


@pytest.mark.parametrize(
    ("granted", "use", "expected"),
    [
        pytest.param(CAP, (960, 10), True, id="its cap"),
        pytest.param(CAP, (500, 480), False, id="caps hold for each alone"),
        pytest.param(Allocation(memory_limit_bytes=1000, limited_by="wall"), (500, 480), True, id="a wall for all"),
        pytest.param(Allocation(), (960, 960), False, id="no limit"),
    ],
)
def test_use_near_the_limit_is_noted(job: Job, granted: Allocation, use: tuple[int, int], expected: bool) -> None:
    program, other = job.start(ON_GPU + UNTIL_GO + "sys.exit(1)"), job.start(ON_GPU + UNTIL_GO)
    job.recorder.note_memory({program.pid: use[0], other.pid: use[1]}, granted)
    job.release()
    program.wait(LIMIT_S)
    other.wait(LIMIT_S)
    assert (f"full {program.pid}" in job.lines()) is expected


def test_a_program_near_its_limit_that_wrote_why_it_ended_is_judged_by_that(job: Job) -> None:
    with (job.folder / "log").open("wb") as log:
        program = job.start(ON_GPU + UNTIL_GO + "sys.exit('cannot open input.dat')", log.fileno())
        job.recorder.note_memory({program.pid: 960}, CAP)
        job.release()
        program.wait(LIMIT_S)
    assert f"near {program.pid}" in job.lines()
    assert f"full {program.pid}" not in job.lines()
    assert f"output {program.pid} 0 22 22 own {job.folder}/log" in job.lines()


def test_a_program_that_was_always_near_its_limit_is_not_near(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes all memory at its start, and fails for another reason."""
    program = job.start(ON_GPU + "sys.stdin.read(); sys.exit(1)")
    now_s = time.monotonic
    monkeypatch.setattr(failures.time, "monotonic", lambda: now_s() - GROWN_S - 1)
    job.recorder.note_memory({program.pid: 960}, CAP)
    monkeypatch.undo()
    job.recorder.note_memory({program.pid: 960}, CAP)
    program.wait(LIMIT_S)
    assert job.lines()[-1] == f"failed {program.pid} 256"


def test_what_was_written_long_ago_does_not_count() -> None:
    output = failures._Output(descriptor=os.open("/proc/self/exe", os.O_PATH), path="x", appends=True)
    output.sizes.extend([(0.0, 10), (20.0, 20), (30.0, 30)])
    output.measure(LAST_WORDS_S + 25.0)
    assert [at_s for at_s, _ in output.sizes] == [20.0, 30.0, LAST_WORDS_S + 25.0]
    assert (output.size_at(25.0), output.size_at(30.0), output.size_at(0.0)) == (20, 30, 20)
    os.close(output.descriptor)


def test_where_no_reader_is_seen_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task's end would wait for an answer."""
    monkeypatch.setattr("gpusage.node.sampler.kernel_events._AT_FDCWD", -1)  # as a kernel that refuses
    monkeypatch.setattr("gpusage.node.sampler.kernel_events._FAN_MARK_ADD", 0)
    selector = ProcessSelector(variable="MY_JOB=7", cgroups=(), uid=os.geteuid())
    with pytest.raises(OSError, match="fanotify_mark"):
        FailureRecorder(tmp_path / "ends", selector, tmp_path)
    assert not list(tmp_path.iterdir())


def test_only_the_jobs_user_may_read_the_file_and_only_root_may_write_it(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    selector = ProcessSelector(variable="MY_JOB=7", cgroups=(), uid=65534)
    recorder = FailureRecorder(tmp_path / "ends", selector, tmp_path)
    recorder.start()
    checks = {65534: "test -r ends && ! test -w ends", 65533: "! test -r ends"}
    for uid, check in checks.items():
        subprocess.run(["sh", "-c", check], cwd=tmp_path, user=uid, group=uid, extra_groups=[], check=True)
    assert (tmp_path / "ends").stat().st_uid == 0
    recorder.close()
