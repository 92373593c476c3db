"""How a job is recognized as an earlier one: its model, its step settings, who submits it, its name and its script.

Invariants:

1. Every similarity key but that of `OTHERS` includes the user: one user's runs predict no other user's job.
2. A key is a digest, from which nobody reads a name.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from itertools import chain
from operator import attrgetter
from typing import Literal

from gpusage_hooks.job_keys import STEP_SETTINGS
from gpusage_hooks.types import GpuRequest, JobIdentity, ModelGraph, Submitter, Workload
from gpusage_hooks.units import GIB

_FIRST_WORD, _NUMBER = re.compile(r"[a-z]+"), re.compile(r"\d+")

Level = Literal["script and name", "name", "script", "script of others", "request", "user"]
"""A likeness of earlier runs and a job that names no model; all but one include the user. Nearest first."""
NEAR_LEVELS: tuple[Level, ...] = ("script and name", "name", "script")
OTHERS: Level = "script of others"
LEVELS: tuple[Level, ...] = (*NEAR_LEVELS, OTHERS, "request", "user")
LEAST_USERS = 3
"""A median of three users withstands one who lies; two can always agree (docs/decisions/experience.md)."""
MOST_USERS = 12
"""The newest of them; bounds the time of a decision."""


def fingerprint(graph: ModelGraph) -> str:
    """Return sixteen digits that are equal for models that do the same work; the graph remembers them."""
    known = graph.derived.get(__name__)
    if isinstance(known, str):
        return known

    operators = sorted(Counter(map(attrgetter("op_type"), graph.nodes)).items())
    shapes = sorted(Counter(chain.from_iterable(map(attrgetter("outputs"), graph.nodes))).items())
    digits = _digest((graph.parameter_count, graph.fixed_batch_size, graph.inputs, operators, shapes))
    graph.derived[__name__] = digits
    return digits


def family(name: str) -> str:
    """Return the family of the model *name*: its first word without digits, in lower case."""
    # A named model has a source before a colon; a file has a folder.
    match = _FIRST_WORD.search(name.rpartition(":")[2].rpartition("/")[2].lower())
    return match[0] if match else ""


def settings_key(workload: Workload) -> str:
    """Return how a model is run, as far as that changes the GPU's work in a step."""
    usual = f"{workload.mode},{workload.batch_size},{workload.precision},{workload.optimizer}"
    # Keys at their defaults are left out, so that a new key changes no key of a job that does not use it.
    return ",".join([usual, *(f"{key}={value}" for key, value in unusual_settings(workload).items())])


def unusual_settings(workload: Workload) -> dict[str, float | str]:
    """Return the step settings of *workload* that differ from the defaults, by their keys."""
    rows = [(row, getattr(workload, row.targets[0])) for row in STEP_SETTINGS]
    unusual = {row.name: value for row, value in rows if value != row.workload_default}
    return {key: value if isinstance(value, (int, float)) else str(value) for key, value in unusual.items()}


def job_identity(
    submitter: Submitter, *, graph: ModelGraph | None = None, request: GpuRequest | None = None
) -> JobIdentity:
    """Return the identity by which a later job of *submitter* is recognized.

    Args:
        submitter: Who submits it, under what name and with which script.
        graph: Its model; ``None`` where it names none.
        request: Of the job; ``None`` where that does not matter.
    """
    # Equal for equal requests: ``1 a100, 8 cores, 32 GiB``.
    described = ""
    if request:
        cores, memory_gib = request.cpu_count, request.host_memory_bytes / GIB
        described = f"{request.gpu_count} {request.gpu_type or 'any'}, {cores} cores, {memory_gib:.0f} GiB"
    return JobIdentity(
        user=submitter.user,
        account=submitter.account,
        job_name=submitter.job_name,
        script_digest=submitter.script_digest,
        fingerprint=fingerprint(graph) if graph else "",
        family=family(graph.name) if graph else "",
        request=described,
    )


def similarity_keys(identity: JobIdentity) -> dict[Level, str]:
    """Return the key of a job at each level that it has, nearest first; none where its user is not known."""
    user, script = identity.user, identity.script_digest
    if not user:
        return {}

    # Jobs of one series differ by a number: sweep-17, sweep-18.
    name = _NUMBER.sub("0", identity.job_name)
    parts: dict[Level, tuple[str, ...]] = {
        "script and name": (user, script, name) if script and name else (),
        "name": (user, identity.account, name) if name else (),
        "script": (user, script) if script else (),
        OTHERS: (script,) if script else (),
        "request": (user, identity.account, identity.request) if identity.request else (),
        "user": (user,),
    }
    return {level: _digest((level, *values)) for level, values in parts.items() if values}


def user_key(user: str) -> str:
    """Return the digest that stands for *user* in a history."""
    return _digest(("user", user))


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode("utf-8", "replace")).hexdigest()[:16]
