"""The MPS control daemon of one GPU: the one that is there, or one of our own, which is stopped again."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
DEFAULT_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - the driver's own
LIMIT_S = 20
"""A daemon answers at once; one that stops waits for its server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mps:
    """A daemon that answers.

    Attributes:
        control: Path of ``nvidia-cuda-mps-control``.
        environment: What its clients must have.
    """

    control: str
    environment: Mapping[str, str]

    def ask(self, command: str) -> str | None:
        """Return what the daemon answers, ``None`` where none answers."""
        try:
            done = subprocess.run(
                [self.control],
                input=command + "\n",
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    @property
    def has_clients(self) -> bool:
        """Whether a server runs: a program that cannot reach the daemon silently runs without it."""
        return any(line.strip().isdigit() for line in (self.ask("get_server_list") or "").splitlines())


def without_mps() -> Mapping[str, str]:
    """Return the environment of a program that shall not find any daemon."""
    return {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent/gpusage-no-mps"}


@contextmanager
def running(device: str, control: str | None = None) -> Iterator[Mps | None]:
    """Yield the MPS daemon for *device*, ``None`` where MPS is not there; stop it if it was started here.

    Args:
        device: The GPU's UUID.
        control: The program; looked for where it is None.
    """
    program = control or find_control()
    if program is None:
        yield None
        return
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE)
    present = Mps(control=program, environment={"CUDA_MPS_PIPE_DIRECTORY": pipe})
    if present.ask("get_server_list") is not None:
        yield present
        return
    with tempfile.TemporaryDirectory(prefix="gpusage-mps-", ignore_cleanup_errors=True) as folder:
        own = _own(program, Path(folder), device)
        try:
            yield own if _start(own) else None
        finally:
            own.ask("quit")


def find_control() -> str | None:
    """Return the path of the control program: on the PATH, or beside nvidia-smi."""
    path = shutil.which(PROGRAM)
    smi = shutil.which("nvidia-smi")
    if path is None and smi is not None:
        path = shutil.which(PROGRAM, path=str(Path(smi).resolve().parent))
    return path


def _own(program: str, folder: Path, device: str) -> Mps:
    for name in ("pipe", "log"):
        (folder / name).mkdir()
    return Mps(
        control=program,
        environment={
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
            "CUDA_VISIBLE_DEVICES": device,
        },
    )


def _start(daemon: Mps) -> bool:
    """Start the daemon; it leaves a process of its own behind, in a session of its own."""
    try:
        done = subprocess.run(
            [daemon.control, "-d"],
            env={**os.environ, **daemon.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and daemon.ask("get_server_list") is not None
