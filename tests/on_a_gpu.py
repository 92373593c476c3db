"""The first minute on a GPU: what it does where docs/slurm.md ("To try on a GPU") has only what is expected.

As root on a machine with a GPU: `python3 tests/on_a_gpu.py | tee facts.jsonl`. Each line has a question and its answer;
what is not there (no r615, no cgroup v2, no MPS) is an answer as well. It needs Python 3.9 and nothing else, changes no
setting of the GPU, and removes its cgroups. Without a GPU, tests/unit/test_on_a_gpu.py runs it on the stand-ins.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PIECE_MIB, LIMIT_MIB, HELD_MIB = 64, 4096, 2560
OPTIONS = argparse.ArgumentParser(description=__doc__)
OPTIONS.add_argument("--cgroups", type=Path, default=Path("/sys/fs/cgroup"))
OPTIONS.add_argument("--program", default="", help="instead of CUDA itself: a program with the options of `fake-gpu`")
CLIENT = argparse.ArgumentParser()
CLIENT.add_argument("mib")
CLIENT.add_argument("--until", type=Path)
CLIENT.add_argument("--say", type=Path, required=True)
CLIENT.add_argument("--managed", action="store_true")


def allocate(arguments: list[str]) -> None:
    """Be a client of CUDA's driver that allocates memory in pieces, and says how much it got and what it saw."""
    options = CLIENT.parse_args(arguments)
    driver = ctypes.CDLL("libcuda.so.1")
    context, free, total, address = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    code = (
        driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or driver.cuCtxSetCurrent(context)
    )
    code = code or driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    mib = 0
    while not code and (options.mib == "all" or mib < int(options.mib)):
        size = ctypes.c_size_t(PIECE_MIB << 20)
        if options.managed:
            code = driver.cuMemAllocManaged(ctypes.byref(address), size, 1)
            # Managed memory lies on the GPU once the GPU has written it.
            code = code or driver.cuMemsetD8_v2(address, 1, size)
        else:
            code = driver.cuMemAlloc_v2(ctypes.byref(address), size)
        mib += 0 if code else PIECE_MIB
    response = {"mib": mib, "code": code, "free_mib": free.value >> 20, "total_mib": total.value >> 20}
    options.say.write_text(json.dumps(response) + "\n")
    while options.until and not options.until.exists():
        time.sleep(0.02)


class Trial:
    """A folder, a GPU, and the programs that try something on it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.cgroups, self.folder = options.cgroups, folder
        copy = shutil.copy(__file__, folder)  # where other users can read it
        self.program = [options.program, "take"] if options.program else [sys.executable, copy, "take"]
        self.running: list[subprocess.Popen[bytes]] = []
        self.count = 0

    def client(self, mib: str, *options: str, cgroup: Path | None = None, user: int = 0, **variables: str) -> dict:
        """Start a client that keeps its memory until `release`, and return what it was told."""
        self.count += 1
        says = self.folder / str(self.count)
        command = [*self.program, mib, "--until", str(self.folder / "over"), "--say", str(says), *options]
        if user:
            command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
        enter = f"echo $$ >{cgroup}/cgroup.procs; " if cgroup else ""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        words = ["sh", "-c", f'{enter}exec "$@"', "sh", *command]
        self.running.append(subprocess.Popen(words, env={**environment, **variables}, stderr=subprocess.DEVNULL))
        for _ in range(1500):
            if says.exists() and says.stat().st_size:
                return {"mib": 0, **json.loads(says.read_text().splitlines()[-1])}
            if self.running[-1].poll() is not None:
                break
            time.sleep(0.02)
        return {"mib": None, "code": f"it said nothing, and ended with {self.running[-1].poll()}"}

    def release(self) -> None:
        """Let all clients end."""
        (self.folder / "over").touch()
        for process in self.running:
            process.wait(60)
        self.running.clear()
        (self.folder / "over").unlink()

    def shell(self, command: str, **variables: str) -> str:
        """Return what a command prints, and its exit status where that is not 0."""
        done = subprocess.run(
            ["sh", "-c", command],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return f"{done.stdout}{done.stderr}".strip() + (f" [exit {done.returncode}]" if done.returncode else "")

    def facts(self) -> Iterator[tuple[str, object]]:
        """Yield what the machine has."""
        yield "kernel", os.uname().release
        yield "driver", self.shell("nvidia-smi --query-gpu=driver_version,name,memory.total --format=csv,noheader")
        files = " ".join(str(self.cgroups / name) for name in ("cgroup.controllers", "dmem.capacity"))
        yield "cgroups", self.shell(f"stat -fc %T {self.cgroups}; cat {files}")
        yield "memory-limits --help", self.shell("nvidia-smi memory-limits --help")
        yield "MPS", self.shell("nvidia-cuda-mps-control -v; nvidia-cuda-mps-control -p 3 -h </dev/null")

    def limit(self, cgroup: Path, mib: int) -> str:
        """Limit a cgroup's memory, and return what nvidia-smi says."""
        name = f"-n {cgroup} -i 0"
        limits = f"--soft-limit 0 --hard-limit {mib}"
        return self.shell(f"nvidia-smi memory-limits --set {name} {limits}; nvidia-smi memory-limits --get {name}")

    def walls(self) -> Iterator[tuple[str, object]]:
        """Yield what a limit on a cgroup does to the processes of one below it."""
        job = self.cgroups / f"gpusage-try-{os.getpid()}"
        step = job / "step_0"
        step.mkdir(parents=True)
        try:
            for above in (self.cgroups, job):
                yield f"+dmem in {above}", self.shell(f"echo +dmem >{above}/cgroup.subtree_control")
            yield "limit", self.limit(job, LIMIT_MIB)
            yield "first process", self.client(str(HELD_MIB), cgroup=step)
            yield "second process, all", self.client("all", cgroup=step)
            query = "nvidia-smi --query-gpu=memory.total,memory.used --format=csv,noheader"
            yield "nvidia-smi there", self.shell(f"echo $$ >{step}/cgroup.procs; {query}")
            self.release()
            yield "managed memory beyond it", self.client(str(8 * LIMIT_MIB), "--managed", cgroup=step)
            self.release()
            yield "client of a daemon outside, all", self.client("all", cgroup=step, **self.daemon())
            self.release()
            yield "another limit", self.limit(job, 10 * LIMIT_MIB)
            yield "a process that is there before its limit", self.client(str(HELD_MIB), cgroup=step)
            yield "a limit below what is taken", self.limit(job, 1024)
            yield "and the next process", self.client("64", cgroup=step)
            self.release()
            step.rmdir()
            job.rmdir()
            step.mkdir(parents=True)
            yield "the cgroup made again", self.client(str(2 * LIMIT_MIB), cgroup=step)
        finally:
            self.release()
            step.rmdir()
            job.rmdir()

    def daemon(self, *options: str) -> dict[str, str]:
        """Start an MPS daemon of its own, and return what its clients have."""
        pipe = self.folder / "mps"
        pipe.mkdir(exist_ok=True)
        variables = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
        self.shell(
            f"nvidia-cuda-mps-control -d {' '.join(options)} >/dev/null 2>&1", CUDA_VISIBLE_DEVICES="0", **variables
        )
        return variables

    def caps(self) -> Iterator[tuple[str, object]]:
        """Yield what MPS's variables do."""
        variables = self.daemon()
        pinned = f"0={LIMIT_MIB}M"
        tries = {"pinned limit, all": pinned, "and an unseen GPU": f"{pinned},1={LIMIT_MIB}M"}
        try:
            for question, limit in tries.items():
                yield question, self.client("all", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=limit, **variables)
                self.release()
            yield "one user", self.client("64", **variables)
            yield "another user", self.client("64", user=65534, **variables)
            self.release()
        finally:
            self.release()
            yield "quit", self.shell("echo quit | nvidia-cuda-mps-control", **variables)


def main() -> None:
    """Ask one question after the other."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        trial = Trial(OPTIONS.parse_args(), Path(name))
        for questions in (trial.facts, trial.caps, trial.walls):
            report(questions())


def report(questions: Iterator[tuple[str, object]]) -> None:
    """Print each question and its answer; where something is missing, the others still have theirs."""
    try:
        for question, answer in questions:
            print(json.dumps([question, answer]), flush=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(json.dumps(["stopped", str(error)]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["take"]:
        allocate(sys.argv[2:])
    else:
        main()
