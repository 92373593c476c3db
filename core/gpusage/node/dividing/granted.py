"""A job's part of a GPU, as `gpusage-mps` wrote it on the node, and as the job's own client read it back.

A client of the CUDA driver reports its view under the job's limits. A second client runs where no MPS daemon listens,
and so sees the whole GPU: the driver ignores a percentage that no daemon enforces, and only the comparison of both
views shows this. No client makes a CUDA context, which would take a job's memory.

Invariants:

1. A file that is missing, too large, or not ours is never an error: it counts as not read back.
2. The percentage is the share's own: a job may use more where the site allows it (`sharing.cap`).
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from gpusage.boundary.printable_text import ascii_line, shortened
from gpusage.node.dividing import PROBE
from gpusage_hooks.types import Allocation
from gpusage_hooks.units import GIB, MIB, WHOLE_PERCENT

FOLDER = Path("/run/gpusage-mps")
"""Folder of `gpusage-mps`, unless the environment names another one."""

PERCENT_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""A job's ceiling of threads; only a job with a share has this variable."""
LIMIT_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""A job's cap on device memory."""
NOT_READ_BACK = "not read back"
_WITHOUT_MPS = "no MPS daemon holds the client: it sees all SMs"
_MAXIMUM_BYTES = 4096
_CLAUSE_CHARACTERS = 120
_JOB = re.compile(r"[A-Za-z0-9_]{1,80}")
_LIMIT = re.compile(r"0=([0-9]{1,9})([MG])B?")
_UNITS = {"M": MIB, "G": GIB}
_File = TypeVar("_File")
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
"""Folder in which a client's MPS daemon listens."""
_NOWHERE = "/nonexistent"
_LIMIT_S = 8.0
"""Time limit of one client, because a GPU may hang."""


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    """A client's view of its GPU, as probe.py prints it; under the job's user, who may have it print anything."""

    sm_count: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    memory_bytes: int | None = None
    thread_percent: str | None = None
    memory_limit: str | None = None
    priority: str | None = None
    partition: str | None = None
    trouble: str = ""


def read_granted(job_id: str, *, folder: Path = FOLDER, sm_count: int | None = None) -> Allocation | None:
    """Return the allocation of *job_id* on this node; ``None`` where the job shared no GPU through gpusage.

    Args:
        job_id: The workload manager's own form.
        folder: Folder of `gpusage-mps`.
        sm_count: SMs of the whole GPU, if known: no limit holds a client that sees all of them.
    """
    # The job's number becomes the name of a file.
    if not _JOB.fullmatch(job_id):
        return None

    granted = _read(folder / "granted" / f"{job_id}.json", Allocation)
    if granted is None or granted.division == "whole":
        return granted
    return with_client_view(granted, _read(folder / "granted" / f"{job_id}.seen", ClientView), sm_count)


def with_client_view(granted: Allocation, view: ClientView | None, sm_count: int | None) -> Allocation:
    """Return *granted*, corrected by the view of its client.

    Args:
        granted: Limits that the node has set.
        view: The client's view; ``None`` where no client ran.
        sm_count: SMs of the whole GPU, as for `read_granted`.
    """
    if view is None or view.sm_count is None:
        clause = shortened(ascii_line(view.trouble), _CLAUSE_CHARACTERS) if view else ""
        return _with_trouble(granted, clause or NOT_READ_BACK)

    percent = granted.thread_percent
    # The driver takes a percentage without an MPS daemon, and does not enforce it.
    if sm_count and percent is not None and percent < WHOLE_PERCENT and view.sm_count >= sm_count:
        limited_by = "none" if granted.limited_by == "cap" else granted.limited_by
        unheld = replace(granted, division="whole", thread_percent=None, limited_by=limited_by)
        return _with_trouble(unheld, _WITHOUT_MPS)

    # A client's own variable can lower the limit of its server, never raise it.
    limits = (granted.memory_limit_bytes, limit_bytes(view.memory_limit))
    least = min((limit for limit in limits if limit is not None), default=None)
    if sm_count:
        # The driver rounds a percentage up to a count of SMs that the GPU supports, so the SMs show the true one.
        percent = min(WHOLE_PERCENT, math.ceil(WHOLE_PERCENT * view.sm_count / sm_count))
    return replace(granted, thread_percent=percent, memory_limit_bytes=least)


def parse_client_view(content: bytes) -> ClientView | None:
    """Parse the output of probe.py; ``None`` where *content* is something else."""
    try:
        return msgspec.json.decode(content[:_MAXIMUM_BYTES], type=ClientView)
    except msgspec.MsgspecError:
        return None


def limit_bytes(text: str | None) -> int | None:
    """Return the limit of device 0 in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT's own form, ``0=4096M``."""
    limit = _LIMIT.fullmatch(text or "")
    return int(limit[1]) * _UNITS[limit[2]] if limit else None


def _with_trouble(granted: Allocation, clause: str) -> Allocation:
    return replace(granted, trouble="; ".join(filter(None, (granted.trouble, clause))))


def _read(path: Path, kind: type[_File]) -> _File | None:
    """Return the value in the file at *path*; ``None`` where there is no such file or value."""
    # No link is followed, and a pipe without a writer does not block.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_MAXIMUM_BYTES)
        return msgspec.json.decode(content, type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def query_client_view(limits: Mapping[str, str]) -> ClientView | None:
    """Return the view of a client with the variables ``CUDA_*`` of *limits*; ``None`` without an answer in time."""
    # Isolated (-I, -S), so that no module of the user's takes the place of one of Python's.
    library = os.environ.get("GPUSAGE_CUDA_LIBRARY")
    command = [sys.executable, "-I", "-S", str(PROBE), *([library] if library else [])]
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **limits}
    try:
        done = subprocess.run(
            command,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_LIMIT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_client_view(done.stdout)


def whole_sm_count(variables: Mapping[str, str]) -> int | None:
    """Return the SMs of the whole GPU that ``CUDA_*`` in *variables* name; ``None`` where the driver reports none."""
    # Without the job's limits, and with no daemon at hand, a client sees the whole device.
    device = {name: value for name, value in variables.items() if "_MPS_" not in name}
    seen = query_client_view({**device, PIPE_VARIABLE: _NOWHERE})
    return seen.sm_count if seen else None
