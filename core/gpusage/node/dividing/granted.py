"""What a job was given of a GPU, as `gpusage-mps` wrote it on the node, and as the job's own client read it back.

A client of the CUDA driver reports what it sees under given limits. The same client asks once more where no MPS daemon
listens, and so sees the whole GPU: the driver ignores a percentage that no daemon enforces, and only a comparison shows
that. No client makes a CUDA context, which would take a job's memory.

Invariants:

1. A file that is missing, too large, or not ours is never an error: nothing was read back then.
2. The percentage is the one that was set for the share: a job may use more where the site lets it (`sharing.cap`).
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
"""Where `gpusage-mps` keeps its files, unless the environment names another folder."""

PERCENT_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""In a job's environment: its ceiling of threads, which only a job with a share has."""
LIMIT_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""In a job's environment: its cap on device memory."""
NOT_READ_BACK = "not read back"
_WITHOUT_MPS = "no MPS daemon holds the client: it sees all SMs"
_MAXIMUM_BYTES = 4096
_CLAUSE_CHARACTERS = 120
_JOB = re.compile(r"[A-Za-z0-9_]{1,80}")
_LIMIT = re.compile(r"0=([0-9]{1,9})([MG])B?")
_UNITS = {"M": MIB, "G": GIB}
_File = TypeVar("_File")
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
"""In a client's environment: where its MPS daemon listens."""
_NOWHERE = "/nonexistent"
_LIMIT_S = 8.0
"""For one client: a GPU may hang."""


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    """What a client saw, as probe.py prints it; that runs as the job's user, who may have it print anything."""

    sm_count: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    memory_bytes: int | None = None
    thread_percent: str | None = None
    memory_limit: str | None = None
    priority: str | None = None
    partition: str | None = None
    trouble: str = ""


def read_granted(job_id: str, *, folder: Path = FOLDER, sm_count: int | None = None) -> Allocation | None:
    """Return what the job *job_id* of this node was given; ``None`` where it shared no GPU through us.

    Args:
        job_id: In the workload manager's own form.
        folder: Where `gpusage-mps` keeps its files.
        sm_count: Of the whole GPU, where that is known: a client that sees them all is held by nothing.
    """
    if not _JOB.fullmatch(job_id):
        return None
    granted = _read(folder / "granted" / f"{job_id}.json", Allocation)
    if granted is None or granted.division == "whole":
        return granted

    # The prolog's client has written this while the job started; the job's user may have written it as well.
    return with_client_view(granted, _read(folder / "granted" / f"{job_id}.seen", ClientView), sm_count)


def with_client_view(granted: Allocation, view: ClientView | None, sm_count: int | None) -> Allocation:
    """Return *granted* as a client of it saw it.

    Args:
        granted: What the node set.
        view: What the client saw; ``None`` where none could be asked.
        sm_count: As of `read_granted`.
    """
    if view is None or view.sm_count is None:
        clause = shortened(ascii_line(view.trouble), _CLAUSE_CHARACTERS) if view and view.trouble else NOT_READ_BACK
        return replace(granted, trouble="; ".join(filter(None, (granted.trouble, clause))))

    # The driver ignores a percentage without a word where no daemon enforces it.
    percent = granted.thread_percent
    if sm_count and percent is not None and percent < WHOLE_PERCENT and view.sm_count >= sm_count:
        trouble = "; ".join(filter(None, (granted.trouble, _WITHOUT_MPS)))
        return replace(granted, division="whole", thread_percent=None, trouble=trouble)

    # The job may have set a lower limit itself.
    limits = (granted.memory_limit_bytes, limit_bytes(view.memory_limit))
    least = min((limit for limit in limits if limit is not None), default=None)

    # A percentage is rounded up to whole SMs.
    if sm_count:
        percent = min(WHOLE_PERCENT, math.ceil(WHOLE_PERCENT * view.sm_count / sm_count))
    return replace(granted, thread_percent=percent, memory_limit_bytes=least)


def parse_client_view(content: bytes) -> ClientView | None:
    """Return what probe.py printed; ``None`` where *content* is something else."""
    try:
        return msgspec.json.decode(content[:_MAXIMUM_BYTES], type=ClientView)
    except msgspec.MsgspecError:
        return None


def limit_bytes(text: str | None) -> int | None:
    """Return the limit of device 0 in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT's own form, ``0=4096M``."""
    limit = _LIMIT.fullmatch(text or "")
    return int(limit[1]) * _UNITS[limit[2]] if limit else None


def _read(path: Path, kind: type[_File]) -> _File | None:
    """Return the value in the file at *path*; ``None`` where there is none, or no regular file holds it."""
    try:
        # A link or a pipe in the file's place would lead, or hold, this process elsewhere.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_MAXIMUM_BYTES)
        return msgspec.json.decode(content, type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def query_client_view(limits: Mapping[str, str]) -> ClientView | None:
    """Return what a client sees whose variables ``CUDA_*`` are *limits*; ``None`` where none could be asked in time."""
    # Tests have a driver of their own. -I and -S: nothing of the job's environment is imported.
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
    device = {name: value for name, value in variables.items() if "_MPS_" not in name}
    seen = query_client_view({**device, PIPE_VARIABLE: _NOWHERE})
    return seen.sm_count if seen else None
