"""A waiting job that its share or slice binds to GPU types: its own constraint, and where its own request could run.

Its pool had room when it was bound. Where that is gone, or its nodes, it would wait while other GPUs are free.
"""

from __future__ import annotations

import re

from gpusage.mark import Mark
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.pools import NodeState, free_whole_gpus
from gpusage_slurm.jobs.exclusion import may_run_on
from gpusage_slurm.submission.avoided import place_of
from gpusage_slurm.submission.constraint import alternatives, unbound_constraint

WAITS_FOR_NODES = (
    "Priority",
    "Resources",
    "None",
    "ReqNodeNotAvail",
    "Nodes_required",
    "Nodes required",
    "BadConstraints",
)
"""How the reasons begin for which such a job waits; for `BadConstraints` slurmctld holds it, and nobody releases it."""

_CONSTRAINT = "constraint "
_SLICE = re.compile(r"gres/gpu:([A-Za-z0-9_.-]+):1")
_UNTYPED = re.compile(r"gres/gpu(?::1)?")
_AMOUNT = re.compile(r"(?P<number>[0-9.]+)(?P<unit>[KMGTP]?)")
_UNITS = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}  # MiB


def is_bound(mark: Mark | None) -> bool:
    """Tell whether *mark* is of a job that was bound to GPU types; one whose user named the type is not."""
    if mark is None or not _UNTYPED.fullmatch(mark.before):
        return False
    return place_of(mark).startswith(_CONSTRAINT) or slice_of(mark) is not None


def slice_of(mark: Mark) -> str | None:
    """Return the type of the slice (MIG) that a job with *mark* has in place of its user's GPU, as ``3g.20gb``."""
    typed = _SLICE.fullmatch(mark.after) if _UNTYPED.fullmatch(mark.before) else None
    return typed[1] if typed else None


def own_constraint(mark: Mark, features: str) -> str | None:
    """Return the user's own constraint, ``""`` for none, of a job that is bound; ``None`` where that is not so.

    Args:
        mark: The job's; a long one is cut off.
        features: Its constraint now; its user may have changed it since.
    """
    if not is_bound(mark):
        return None
    if slice_of(mark):
        return "" if features == "(null)" else features
    held = place_of(mark).removeprefix(_CONSTRAINT)
    same = features.startswith(held[:-3]) if held.endswith("...") else features == held
    return unbound_constraint(features) if same else None


def could_run_whole(node: NodeState, job: scontrol.Line, own: str, mark: Mark | None = None) -> bool:
    """Tell whether *node* has a whole GPU free, and cores and memory for the job; where in doubt, it has not.

    Args:
        node: Any.
        job: What `scontrol show job` says of it.
        own: Its user's constraint.
        mark: Its own, by which nodes that it avoids for its neighbours' sake are known.
    """
    cpu_count = int(job.get("NumCPUs", "1").partition("-")[0])
    of_cpu = mib(job.get("MinMemoryCPU", "0")) * cpu_count
    groups = alternatives(own) if own else ((),)
    return (
        node.open
        and free_whole_gpus(node) > 0
        and bool({*job.get("Partition", "").split(",")} & {*node.partitions})
        and node.cpu_count - node.used_cpu_count >= cpu_count
        and node.memory_mib - node.used_memory_mib >= max(mib(job.get("MinMemoryNode", "0")), of_cpu)
        and any({*group} <= {*node.features} for group in groups)
        and may_run_on(job, mark, node.name)
    )


def mib(text: str) -> float:
    """Return the MiB of ``64G``; 0 for what is no amount."""
    found = _AMOUNT.fullmatch(text)
    return float(found["number"]) * _UNITS[found["unit"]] if found else 0.0
