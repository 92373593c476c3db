"""Where a node keeps the usage of its jobs until it is delivered.

Invariants:

1. Only what this user wrote there is read.
2. A file is there whole or not at all.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gpusage_hooks.types import Usage

RETENTION_S = 86_400.0
"""How long usage that could not be delivered stays on the node."""


class UsageSpool:
    """A folder of a node with the usage of its jobs; nobody else may write there.

    Args:
        path: Made where there is none.
        prefix: Of this cluster's and node's files: one machine may be several nodes.

    Raises:
        OSError: It cannot be made, or is somebody else's.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            message = f"{path} is not this user's own folder"
            raise PermissionError(message)
        self.path = path
        self.prefix = prefix

    def file(self, job_id: str, kind: str) -> Path:
        """Return the file of a job that is sampled now: ``pid``, or ``device`` with its GPUs."""
        return self.path / f"{self.prefix}{job_id}.{kind}"

    def save(self, usage: Usage) -> None:
        """Write *usage*, whole or not at all."""
        file = self._path_of_run(usage)
        fresh = file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(usage))
        fresh.replace(file)

    def remove(self, usage: Usage) -> None:
        """Remove the usage of a run."""
        self._path_of_run(usage).unlink(missing_ok=True)

    def _path_of_run(self, usage: Usage) -> Path:
        return self.path / f"{self.prefix}{usage.job_id}@{usage.started_at_s:.0f}.json"

    def finished_runs(self) -> Iterator[tuple[Path, Usage]]:
        """Yield the usage of every run that has ended; what is too old or unreadable is removed."""
        for file in sorted(self.path.glob(f"{self.prefix}*.json")):
            if (self.path / f"{file.name.rpartition('@')[0]}.pid").exists():
                continue
            with suppress(OSError):
                try:
                    usage = msgspec.json.decode(file.read_bytes(), type=Usage)
                except msgspec.MsgspecError:
                    file.unlink()
                    continue
                if time.time() - usage.ended_at_s > RETENTION_S:
                    file.unlink()
                    continue
                yield file, usage

    def devices_of_other_jobs(self, job_id: str) -> Iterator[str]:
        """Yield the GPUs of the other jobs that are sampled now."""
        own = self.file(job_id, "device")
        for file in self.path.glob(f"{self.prefix}*.device"):
            if file != own:
                with suppress(OSError):
                    yield from file.read_text().split(",")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock under which the node delivers usage, one delivery at a time."""
        with (self.path / f"{self.prefix}lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
