"""The way of a job's usage from its node: a folder until delivery, and a report that carries the usage.

A report is a word in a text that only the node's own daemons write.

Invariants:

1. Only this user's files in the folder count; a file is there whole or not at all.
2. `parse_usage_reports` reads the words of `append_usage_reports` behind the site's own words, which stay unchanged.
3. Any text is readable without an error; other words are skipped.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import stat
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gpusage.experience.finished_jobs import LEAST_SAMPLED_S, filled_memory_cap
from gpusage_hooks.types import Usage

LIMIT_BYTES = 4096
LIMIT_JOBS = 64
"""Limits of a report; runs that show nothing are dropped first, then the oldest runs."""
REPORTED_S = 900.0
"""Time for which usage stays in the text beside newer usage: gpusaged reads the text every minute."""
_REPORT = re.compile(r"(?:^|(?<=[ =]))gpusage:([A-Za-z0-9_-]+=*)(?= |$)", re.MULTILINE)
_LONGEST_JSON_BYTES = 65_536
_DIGITS = 4
_NEEDED = ("number", "user")
"""Fields without a default: a report has them, empty or not."""
RETENTION_S = 86_400.0
"""Time for which undelivered usage stays on the node."""


def append_usage_reports(comment: str, usages: Iterable[Usage], now_s: float) -> str:
    """Return *comment* with a report of *usages* and of its earlier usage that is not too old."""
    site = _REPORT.sub("", comment).strip()
    known = {(usage.job_id, usage.started_at_s): usage for usage in parse_usage_reports(comment)}
    fresh = {key: usage for key, usage in known.items() if now_s - usage.ended_at_s < REPORTED_S}
    runs = fresh | {(usage.job_id, usage.started_at_s): usage for usage in usages}

    # How well the report compresses is known only afterwards, so the least important run goes until it fits.
    best = sorted(runs.values(), key=_priority, reverse=True)[:LIMIT_JOBS]
    word = _encode(best)
    while len(word) > LIMIT_BYTES:
        best.pop()
        word = _encode(best)
    return f"{site} {word}".strip()


def parse_usage_reports(text: str) -> tuple[Usage, ...]:
    """Return the usage in the reports of *text*, each run of a job once."""
    usages = {}
    for word in _REPORT.findall(text):
        for usage in _decode(word):
            usages[usage.job_id, usage.started_at_s] = usage
    return tuple(usages.values())


def _priority(usage: Usage) -> tuple[bool, float]:
    """Rank *usage*: a run that shows something before a run that does not, then the newest."""
    # One user's many jobs of a second must not displace the runs of other users.
    lacked_memory = usage.outcome == "out_of_memory" or filled_memory_cap(usage)
    return usage.sampled_s >= LEAST_SAMPLED_S or lacked_memory, usage.ended_at_s


def _encode(usages: Iterable[Usage]) -> str:
    compact = [_compact(msgspec.to_builtins(usage)) for usage in usages]
    return "gpusage:" + base64.urlsafe_b64encode(zlib.compress(msgspec.json.encode(compact), 9)).decode()


def _compact(fields: object) -> object:
    """Return a JSON value without unknown and empty fields, and with few digits in its numbers."""
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
        path: The folder, which is made if it does not exist.
        prefix: Prefix of this cluster's and node's files: one machine may be several nodes.

    Raises:
        OSError: The folder cannot be made, or is another user's.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        # Not followed: another user may have put a link of this name into a public folder.
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            message = f"{path} is not this user's own folder"
            raise PermissionError(message)
        self.path = path
        self.prefix = prefix

    @contextmanager
    def sampled(self, job_id: str, devices: Collection[str]) -> Iterator[None]:
        """Show that this process samples a job on *devices*, as long as it lives and this context lasts."""
        # The name is no other sampler's, not even of the requeued job; a file appears written and locked.
        file = self.path / f"{self.prefix}{job_id}@{time.time_ns()}.device"
        with file.with_suffix(".new").open("x") as shown:
            fcntl.flock(shown, fcntl.LOCK_EX)
            shown.write(",".join(devices))
            shown.flush()
            file.with_suffix(".new").replace(file)
            try:
                yield
            finally:
                file.unlink(missing_ok=True)

    def save(self, usage: Usage) -> None:
        """Write *usage*, whole or not at all."""
        file = self._path_of_run(usage)
        # Another suffix, so that `finished_runs` never sees a file in the middle of its write.
        fresh = file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(usage))
        fresh.replace(file)

    def remove(self, usage: Usage) -> None:
        """Remove the usage of a run."""
        self._path_of_run(usage).unlink(missing_ok=True)

    def _path_of_run(self, usage: Usage) -> Path:
        # With the start, because a requeued job has several runs under one number.
        return self.path / f"{self.prefix}{usage.job_id}@{usage.started_at_s:.0f}.json"

    def finished_runs(self) -> Iterator[tuple[Path, Usage]]:
        """Yield the usage of every ended run; files that are too old or unreadable are removed."""
        # Files first: a sampler shows itself before it saves.
        files = sorted(self.path.glob(f"{self.prefix}*.json"))
        living = {job for job, _ in self._living_samplers()}
        for file in files:
            if file.name.rpartition("@")[0] not in living:
                with suppress(OSError):
                    usage = None
                    with suppress(msgspec.MsgspecError):
                        usage = msgspec.json.decode(file.read_bytes(), type=Usage)
                    if usage is None or time.time() - usage.ended_at_s > RETENTION_S:
                        file.unlink()
                    else:
                        yield file, usage

    def count_partners(self, job_id: str, devices: Collection[str]) -> int:
        """Return how many other jobs that are sampled now have one of the *devices* of a job."""
        jobs = {job for job, theirs in self._living_samplers() if not {*devices}.isdisjoint(theirs)}
        return len(jobs - {f"{self.prefix}{job_id}"})

    def _living_samplers(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the job, with this prefix, and the devices of every sampler that lives; the files of others go."""
        for file in self.path.glob(f"{self.prefix}*.device"):
            with suppress(OSError), file.open() as shown:
                try:
                    # The kernel ends a lock with its process, however that ends.
                    fcntl.flock(shown, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    file.unlink()
                except BlockingIOError:
                    yield file.name.rpartition("@")[0], shown.read().split(",")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock under which the node delivers usage, one delivery at a time."""
        with (self.path / f"{self.prefix}lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
