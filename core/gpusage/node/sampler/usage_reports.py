"""The way of a job's usage from its node: a folder that holds it until it is delivered, and the report that carries it.

A report is one word of a text that only the node's own daemons write.

Invariants:

1. Of the folder only what this user wrote is read; a file is there whole or not at all.
2. `parse_usage_reports` reads what `append_usage_reports` wrote, behind the site's own words, which stay as they are.
3. Any text is read without an error; a word that is no report of ours is skipped.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gpusage.experience.finished_jobs import LEAST_SAMPLED_S, filled_memory_cap
from gpusage_hooks.types import Usage

LIMIT_BYTES = 4096
LIMIT_JOBS = 64
"""Of a report; runs that show nothing are dropped first, then the oldest."""
REPORTED_S = 900.0
"""How long usage stays in the text after newer usage has come: gpusaged reads it every minute."""
_REPORT = re.compile(r"(?:^|(?<=[ =]))gpusage:([A-Za-z0-9_-]+=*)(?= |$)", re.MULTILINE)
_LONGEST_JSON_BYTES = 65_536
_DIGITS = 4
_NEEDED = ("number", "user")
"""Fields without a default: a report has them, empty or not."""
RETENTION_S = 86_400.0
"""How long usage that could not be delivered stays on the node."""


def append_usage_reports(comment: str, usages: Iterable[Usage], now_s: float) -> str:
    """Return *comment* with a report that adds *usages* to what it reported and is not too old."""
    site = _REPORT.sub("", comment).strip()
    known = {(usage.job_id, usage.started_at_s): usage for usage in parse_usage_reports(comment)}
    fresh = {key: usage for key, usage in known.items() if now_s - usage.ended_at_s < REPORTED_S}
    runs = fresh | {(usage.job_id, usage.started_at_s): usage for usage in usages}

    best = sorted(runs.values(), key=_priority, reverse=True)[:LIMIT_JOBS]
    word = _encode(best)

    # The word has to fit into the node's text; what compresses how well shows only by trying.
    while len(word) > LIMIT_BYTES:
        best.pop()
        word = _encode(best)
    return f"{site} {word}".strip()


def parse_usage_reports(text: str) -> tuple[Usage, ...]:
    """Return the usage that *text* reports, each run of a job once."""
    usages = {}
    for word in _REPORT.findall(text):
        for usage in _decode(word):
            usages[usage.job_id, usage.started_at_s] = usage
    return tuple(usages.values())


def _priority(usage: Usage) -> tuple[bool, float]:
    """Rank *usage*: one user's many jobs of a second must not displace what shows something of others' jobs."""
    lacked_memory = usage.outcome == "out_of_memory" or filled_memory_cap(usage)
    return usage.sampled_s >= LEAST_SAMPLED_S or lacked_memory, usage.ended_at_s


def _encode(usages: Iterable[Usage]) -> str:
    compact = [_compact(msgspec.to_builtins(usage)) for usage in usages]
    return "gpusage:" + base64.urlsafe_b64encode(zlib.compress(msgspec.json.encode(compact), 9)).decode()


def _compact(fields: object) -> object:
    """Return a JSON value without what is unknown or empty, its numbers with a few digits."""
    if isinstance(fields, dict):
        return {name: _compact(value) for name, value in fields.items() if value not in (None, "") or name in _NEEDED}
    return round(fields, _DIGITS) if isinstance(fields, float) else fields


def _decode(word: str) -> tuple[Usage, ...]:
    try:
        # A word of a few bytes may unpack to gigabytes.
        packed = base64.urlsafe_b64decode(word)
        text = zlib.decompressobj().decompress(packed, _LONGEST_JSON_BYTES)
        return msgspec.json.decode(text, type=tuple[Usage, ...])
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return ()


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

        # Another user may have made a folder of this name, or a link, before.
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
            # A job that is sampled still has a pid file.
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
