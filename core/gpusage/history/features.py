"""What a submission tells of a job before it runs, as keys: from what it has in common with few runs to what with many.

Invariants:

1. Every key but that of `OTHERS` has the user in it: what one user does is told to no other user's job.
2. A key is a digest, from which nobody reads a name.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from gpusage_hooks.types import GpuRequest, JobIdentity
from gpusage_hooks.units import GIB

Level = Literal["script and name", "name", "script", "script of others", "request", "user"]
"""What a job and the runs that tell of it have in common; all but one also the user."""
NEAR: tuple[Level, ...] = ("script and name", "name", "script")
OTHERS: Level = "script of others"
FAR: tuple[Level, ...] = ("request", "user")
LEVELS: tuple[Level, ...] = (*NEAR, OTHERS, *FAR)
_NUMBER = re.compile(r"\d+")


def keys_of(identity: JobIdentity) -> dict[Level, str]:
    """Return the key of a job at each level that it has, nearest first; none where its user is not known."""
    user, script = identity.user, identity.script_digest
    if not user:
        return {}
    name = _NUMBER.sub("0", identity.job_name)
    parts: dict[Level, tuple[str, ...]] = {
        "script and name": (user, script, name) if script and name else (),
        "name": (user, identity.account, name) if name else (),
        "script": (user, script) if script else (),
        OTHERS: (script,) if script else (),
        "request": (user, identity.account, identity.request) if identity.request else (),
        "user": (user,),
    }
    return {level: _digest(level, *values) for level, values in parts.items() if values}


def user_key(user: str) -> str:
    """Return what stands for *user*."""
    return _digest("user", user)


def request_words(request: GpuRequest) -> str:
    """Return what *request* asks for, equal for equal requests: ``1 a100, 8 cores, 32 GiB``."""
    gpus = f"{request.gpu_count} {request.gpu_type or 'any'}"
    return f"{gpus}, {request.cpu_count} cores, {request.host_memory_bytes / GIB:.0f} GiB"


def _digest(*words: str) -> str:
    return hashlib.sha256(repr(words).encode("utf-8", "replace")).hexdigest()[:16]
