"""A node's GPUs that enforce, for all tests: limits of cgroups by the driver, and MPS's variables, on faked memory."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mps import STANDINS, control_in
from waiting import wait_until

HIERARCHIES = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/freezer"))
"""Where a host may let root make cgroups whose members the kernel knows."""
GPUS = tuple(
    {
        "uuid": f"GPU-{number}932f937-d72c-4106-0000-000000000000",
        "name": "NVIDIA H100 80GB HBM3",
        "memory_mib": 81559,
        "mig": False,
    }
    for number in (8, 1, 2, 3)
)
"""Four; the stand-in for MPS shows the partitions of the first."""


class FakeGpus:
    """GPUs of one node, and the programs by which everybody asks them.

    Attributes:
        programs: The folder with nvidia-smi, fake-gpu and nvidia-cuda-mps-control; goes on PATH.
    """

    def __init__(self, programs: Path, settings: Mapping[str, Any]) -> None:
        self.programs = programs
        self._name = f"@fake-gpu-{secrets.token_hex(8)}"
        text = (STANDINS / "fake_gpu.py").read_text().replace("@fake-gpu-of-nobody", self._name)
        python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable  # other users run it
        for program in ("nvidia-smi", "fake-gpu"):
            path = programs / program
            path.write_text(f"#!{python} -IS\n{text}")
            path.chmod(0o755)
        control_in(programs)
        command = [sys.executable, "-I", "-S", STANDINS / "fake_gpu.py", "serve", self._name, json.dumps(settings)]
        self._driver = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self._driver.stdout is not None
        assert self._driver.stdout.readline() == b"ready\n"

    def stop(self) -> None:
        """End the driver."""
        self._driver.terminate()
        self._driver.wait()
        if self._driver.stdout is not None:
            self._driver.stdout.close()

    def ask(self, verb: str, **request: object) -> dict[str, Any]:
        """Ask the driver as this process."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("\0" + self._name[1:])
            client.sendall(json.dumps({"verb": verb, **request}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(client.makefile().readline())
            return answer

    def configure(self, **settings: object) -> None:
        """Change settings: driver, backend, reports, mode, context_mib, gpus."""
        self.ask("configure", settings=settings)

    def constrain(self, cgroup: Path, *gpus: int) -> None:
        """Let processes of *cgroup* open these GPUs alone, as Slurm's ConstrainDevices does."""
        root = self.ask("state")["settings"]["cgroups"]
        self.ask("configure", devices={f"/{cgroup.relative_to(root)}": list(gpus)})

    def limits(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return the soft and hard limit in MiB of each GPU's UUID and cgroup."""
        return {(uuid, cgroup): (soft, hard) for uuid, cgroup, soft, hard in self.ask("state")["limits"]}

    def taken_mib(self, cgroup: str = "/", gpu: str = "") -> int:
        """Return the memory that living processes of *cgroup* (`/a/b`) and below have, of one GPU or of all."""
        return sum(
            each["mib"]
            for each in self.ask("state")["memory"]
            if f"{each['cgroup']}/".startswith(f"{cgroup.rstrip('/')}/") and each["gpu"].startswith(gpu)
        )

    def environment(self, **variables: str) -> dict[str, str]:
        """Return an environment whose PATH begins with the programs."""
        return {**os.environ, "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}", **variables}

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of the programs to its end."""
        return subprocess.run(
            command, env=self.environment(**variables), capture_output=True, text=True, check=False, timeout=60
        )


@contextmanager
def fake_gpus(folder: Path, **settings: object) -> Iterator[FakeGpus]:
    """Yield GPUs whose programs are in *folder*; see DEFAULTS in standins/fake_gpu.py for the settings."""
    gpus = FakeGpus(folder, {"gpus": GPUS, **settings})
    try:
        yield gpus
    finally:
        gpus.stop()


def real_hierarchy() -> Path | None:
    """Return a hierarchy in which this user can make cgroups, ``None`` where there is none: it needs root."""
    for root in HIERARCHIES:
        trial = root / f"gpusage-tests-{os.getpid()}"
        try:
            trial.mkdir()
        except OSError:
            continue
        real = (trial / "cgroup.procs").exists()
        trial.rmdir()
        if real:
            return root
    return None


@contextmanager
def real_cgroup(root: Path) -> Iterator[Path]:
    """Yield a new cgroup in the hierarchy *root*; when it goes, so do its processes and what is below it."""
    folder = root / f"gpusage-tests-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        remove_cgroup(folder)


def remove_cgroup(folder: Path) -> None:
    """End all processes of a cgroup and of those below it, and remove them."""

    def empty() -> bool:
        pids = [pid for file in folder.rglob("cgroup.procs") for pid in file.read_text().split()]
        pids += (folder / "cgroup.procs").read_text().split()
        for pid in {*pids} - {"0"}:
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        return not pids

    wait_until(empty)
    for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        path.rmdir()
    folder.rmdir()


def can_mount() -> bool:
    """Return whether this user can make a mount namespace and mount in it."""
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], check=False, capture_output=True)
    return done.returncode == 0


def stand_in_tree(folder: Path, *cgroups: str) -> Path:
    """Return plain folders like cgroup v2's: a process is where its number, or its parent's, was written last."""
    for cgroup in ("", *cgroups):
        path = folder
        for part in Path(cgroup).parts:
            path = path / part
            path.mkdir(exist_ok=True)
        for file in ("cgroup.procs", "cgroup.subtree_control"):
            (path / file).touch()
    (folder / "cgroup.controllers").write_text("cpuset cpu io memory pids misc\n")
    return folder
