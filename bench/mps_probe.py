"""What MPS really does on this GPU: what a client sees of what `gpusage-mps` set, which limits hold, and what fails.

    python bench/mps_probe.py --out mps_probe.json    # on a GPU, as root; about two minutes
    python bench/mps_probe.py --stand-in              # without a GPU: the bench itself, on the tests' stand-ins

Each row is one case. ``sm_count`` and ``memory_bytes`` are what a client sees without a context, as the prolog
reads them back; ``sm_in_context`` and ``free`` within one; ``allocated`` is what it took before the driver refused.
The GPU's own settings are left alone.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpusage.node.dividing import PROBE, PROGRAM

STANDINS = Path(__file__).resolve().parents[1] / "tests" / "standins"
GIB = 1024**3
CASES: Mapping[str, Mapping[str, str]] = {
    "percentage 25": {"GPUSAGE_SHARE_PERCENT": "25"},
    "percentage 50": {"GPUSAGE_SHARE_PERCENT": "50"},
    "percentage 100": {"GPUSAGE_SHARE_PERCENT": "100"},
    "percentage 50, cap 8 GiB": {"GPUSAGE_SHARE_PERCENT": "50", "GPUSAGE_MEMORY_MIB": "8192"},
    "percentage 50, priority 1": {"GPUSAGE_SHARE_PERCENT": "50", "GPUSAGE_PRIORITY": "1"},
    "partition 25": {"GPUSAGE_SHARE_PERCENT": "25", "GPUSAGE_DIVISION": "partition"},
    "partition 50": {"GPUSAGE_SHARE_PERCENT": "50", "GPUSAGE_DIVISION": "partition"},
    "v3 50": {"GPUSAGE_SHARE_PERCENT": "50", "GPUSAGE_MPS_PROTOCOL": "3"},
    "v3 50, cap 8 GiB": {"GPUSAGE_SHARE_PERCENT": "50", "GPUSAGE_MPS_PROTOCOL": "3", "GPUSAGE_MEMORY_MIB": "8192"},
    "several users": {"GPUSAGE_SHARE_PERCENT": "50", "GPUSAGE_ACROSS_USERS": "yes"},
}
_CLIENT_LIMIT_S = 60
Row = dict[str, object]


class Node:
    """One node's MPS, in a folder of its own.

    Args:
        folder: For pipes, logs and records.
        environment: Beside this process's own; a stand-in's for example.
        gpu: The device's UUID.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], gpu: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, **environment, "GPUSAGE_MPS_FOLDER": str(folder)}
        self._gpu = gpu

    def call(self, verb: str, job: int, **settings: str) -> int:
        """Run `gpusage-mps`, and return its exit status."""
        named = {"GPUSAGE_GPU": self._gpu, "GPUSAGE_USER": str(os.getuid()), **settings}
        return subprocess.run([PROGRAM, verb, str(job)], env={**self._environment, **named}, check=False).returncode

    def client(self, job: int, **settings: str) -> dict[str, str]:
        """Return the environment of a process of *job*."""
        lines = (self._folder / "jobs" / str(job)).read_text().splitlines()[1:]
        limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": settings.get("GPUSAGE_SHARE_PERCENT", "100")}
        if "GPUSAGE_MEMORY_MIB" in settings:
            limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={settings['GPUSAGE_MEMORY_MIB']}M"
        if "GPUSAGE_PRIORITY" in settings:
            limits["CUDA_MPS_CLIENT_PRIORITY"] = settings["GPUSAGE_PRIORITY"]
        variables = dict(line.split("=", 1) for line in lines)
        if "CUDA_MPS_SM_PARTITION" in variables:
            limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "100"
        return {**self._environment, **limits, **variables, "CUDA_VISIBLE_DEVICES": "0"}

    def granted(self, job: int) -> Row:
        """Return what was written down of *job*."""
        path = self._folder / "granted" / f"{job}.json"
        granted: Row = json.loads(path.read_text()) if path.exists() else {}
        return granted

    def ask(self, command: str) -> str:
        """Return what the control daemon of v2 answers, word for word: the page about its form is thin."""
        pipe, log = (self._folder / f"gpu-{self._gpu}" / name for name in ("pipe", "log"))
        folders = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
        control = self._environment.get("GPUSAGE_MPS_CONTROL", "nvidia-cuda-mps-control")
        done = subprocess.run(
            [control],
            input=f"{command}\n",
            env={**self._environment, **folders},
            capture_output=True,
            text=True,
            check=False,
            timeout=_CLIENT_LIMIT_S,
        )
        return (done.stdout + done.stderr).strip()


def cases(node: Node) -> Iterator[Row]:
    """Yield a row for each of `CASES`, one job at a time."""
    for job, (name, settings) in enumerate(CASES.items(), start=1):
        status = node.call("enter", job, **settings)
        row: Row = {"case": name, "served": status == 0, **node.granted(job)}
        if status == 0:
            row |= client_view(node.client(job, **settings))
            row["lspart"] = node.ask("lspart") if "GPUSAGE_DIVISION" in settings else ""
        yield row
        node.call("leave", job)


def second_partition(node: Node) -> Row:
    """Return whether a second partition can be cut while a client is on the GPU: v3's page says no, v2's nothing."""
    settings = {"GPUSAGE_SHARE_PERCENT": "25", "GPUSAGE_DIVISION": "partition"}
    node.call("enter", 90, **settings)
    with held(node.client(90, **settings)):
        status = node.call("enter", 91, **settings)
    row: Row = {"case": "a second partition beside a client", "served": status == 0, **node.granted(91)}
    for job in (90, 91):
        node.call("leave", job)
    return row


def without_a_partition(node: Node) -> Row:
    """Tell what a client without a partition sees of a GPU that is partitioned; it should not start."""
    settings = {"GPUSAGE_SHARE_PERCENT": "25", "GPUSAGE_DIVISION": "partition"}
    node.call("enter", 92, **settings)
    environment = node.client(92, **settings)
    environment.pop("CUDA_MPS_SM_PARTITION", None)
    row: Row = {"case": "no partition on a partitioned GPU", **client_view(environment)}
    node.call("leave", 92)
    return row


def without_a_daemon(environment: Mapping[str, str]) -> Row:
    """Tell what a percentage does without a daemon; nothing, it should be."""
    alone = {**os.environ, **environment, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
    return {
        "case": "percentage 25 without a daemon",
        **client_view({**alone, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}),
    }


def client_view(environment: Mapping[str, str]) -> Row:
    """Return what a client in *environment* sees, without a context and within one."""
    probe = [sys.executable, "-I", "-S", str(PROBE)]
    return {**_json_printed(probe, environment), **_json_printed([sys.executable, __file__, "--client"], environment)}


def _json_printed(command: list[str], environment: Mapping[str, str]) -> Row:
    """Return the JSON object that *command* prints; why not, where it prints none."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_CLIENT_LIMIT_S
        )
        row: Row = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        return {"error": str(error)}
    return row


@contextmanager
def held(environment: Mapping[str, str]) -> Iterator[None]:
    """Hold a context of a client in *environment* meanwhile."""
    command = [sys.executable, __file__, "--client", "--hold"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None  # noqa: S101 - it is a pipe
        client.stdout.readline()
        try:
            yield
        finally:
            client.communicate("\n", timeout=_CLIENT_LIMIT_S)


def be_a_client(*, hold: bool) -> Row:
    """Make a context, look around in it, and take memory until the driver refuses."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, sm_count = ctypes.c_void_p(), ctypes.c_int()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    statuses = [
        driver.cuInit(0),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        driver.cuCtxSetCurrent(context),
        driver.cuDeviceGetAttribute(ctypes.byref(sm_count), 16, 0),
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
    ]
    row: Row = {"sm_in_context": sm_count.value, "free": free.value, "total": total.value}
    if any(statuses):
        return {"context": statuses}
    taken, refused = 0, 0
    while not refused and not hold and taken < total.value:
        refused = driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(GIB))
        taken += 0 if refused else GIB
    return {**row, "allocated": taken, "refused_with": refused}


@contextmanager
def stand_ins() -> Iterator[tuple[Mapping[str, str], str]]:
    """Yield the environment and the GPU of the tests' stand-ins."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        control = str(shutil.copy(STANDINS / "nvidia-cuda-mps-control", folder))
        library = ["cc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(STANDINS / "libcuda.c")]
        subprocess.run(library, check=True)
        named = {"GPUSAGE_MPS_CONTROL": control, "STANDIN_VERSION": "13040", "LD_LIBRARY_PATH": name}
        yield named, "GPU-8932f937-d72c-4106"


@contextmanager
def this_gpu() -> Iterator[tuple[Mapping[str, str], str]]:
    """Yield no environment, and the first GPU of this host."""
    command = ["nvidia-smi", "-i", "0", "--query-gpu=uuid", "--format=csv,noheader"]
    yield {}, subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def measure(environment: Mapping[str, str], gpu: str) -> list[Row]:
    """Return all rows."""
    with tempfile.TemporaryDirectory(prefix="gpusage-mps-") as name:
        node = Node(Path(name), environment, gpu)
        rows = [*cases(node), second_partition(node), without_a_partition(node)]
        return [*rows, without_a_daemon(environment)]


def main() -> None:
    """Measure, print the rows, and keep them where that is wished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="Keep the rows in this file, as JSON.")
    parser.add_argument("--stand-in", action="store_true", help="Without a GPU: the tests' stand-ins.")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(json.dumps(be_a_client(hold=options.hold)), flush=True)
        if options.hold:
            sys.stdin.readline()
        return
    with stand_ins() if options.stand_in else this_gpu() as (environment, gpu):
        rows = measure(environment, gpu)
    for row in rows:
        print(json.dumps({key: value for key, value in row.items() if value not in (None, "")}))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
