"""What tells that a job comes again: its model, by what this does; how it is run; who submits it, and by what name."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

from gpusage_hooks.comment import MANNER_KEYS
from gpusage_hooks.types import JobIdentity, ModelGraph, Submitter, Workload

_PLAIN = Workload()
_LETTERS = re.compile(r"[a-z]+")


def fingerprint(graph: ModelGraph) -> str:
    """Return sixteen digits that are equal for models that do the same work; the graph remembers them."""
    known = graph.derived.get(__name__)
    if isinstance(known, str):
        return known
    operators = sorted(Counter(node.op_type for node in graph.nodes).items())
    shapes = sorted(Counter(shape for node in graph.nodes for shape in node.outputs).items())
    content = repr((graph.parameter_count, graph.fixed_batch_size, graph.inputs, operators, shapes))
    digits = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:16]
    graph.derived[__name__] = digits
    return digits


def family(name: str) -> str:
    """Return the family of the model *name*: its first word without digits, in lower case."""
    match = _LETTERS.search(name.rpartition(":")[2].rpartition("/")[2].lower())
    return match[0] if match else ""


def manner_of(workload: Workload) -> str:
    """Return how a model is run, as far as that changes what the GPU does in a step."""
    manner = f"{workload.mode},{workload.batch_size},{workload.precision},{workload.optimizer}"
    return ",".join([manner, *(f"{key}={value}" for key, value in manner_settings(workload).items())])


def manner_settings(workload: Workload) -> dict[str, float | str]:
    """Return what is not as usual in how a model is run, by its key."""
    values = {key: getattr(workload, key) for key in MANNER_KEYS}
    unusual = {key: value for key, value in values.items() if value != getattr(_PLAIN, key)}
    return {key: value if isinstance(value, (int, float)) else str(value) for key, value in unusual.items()}


def identity_of(graph: ModelGraph, submitter: Submitter) -> JobIdentity:
    """Return the identity of a job of *submitter* with the model *graph*."""
    return JobIdentity(
        user=submitter.user,
        account=submitter.account,
        job_name=submitter.job_name,
        fingerprint=fingerprint(graph),
        family=family(graph.name),
    )
