"""Slurm's nodes: the states, features and GPUs that its JSON reports, and which of the GPUs are free."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from gpusage_hooks.types import LimitedBy, Room
from gpusage_hooks.units import MIB
from gpusage_slurm import scontrol
from gpusage_slurm.tres import SHARES, parse_tres

_log = logging.getLogger(__name__)
_BRACKETS = re.compile(r"\([^()]*\)")
# A share in GresUsed, with what stands in its brackets: the indices of GPUs, or a part for each GPU.
_SHARED = re.compile(r"\b(mps|shard)(?::([^:(,]+))?:(\d+)(?:\(([^()]*)\))?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_PARTS = re.compile(r"(\d+)/(\d+)")

# By their beginnings: DRAIN stands for DRAINED and DRAINING.
_UNAVAILABLE_STATES = ("MAINT", "RESERVED", "PLANNED", "REBOOT", "BLOCKED", "POWERING", "NO_RESPOND")
_UNUSABLE_STATES = ("DOWN", "DRAIN", "FAIL", "FUTURE", "NOT_RESPONDING", "POWERED_DOWN", "POWER_DOWN", "UNKNOWN")
LIMIT_WORD = re.compile(rf"(?:^| )gpusage-limit:({'|'.join(get_args(LimitedBy))})(?:\((\S*)\))?(?= |$)")
"""In a node's comment, what limits the memory of jobs there, and why that is no wall; the node's sampler writes it."""
SLICE = re.compile(r"\d+g\.\d+gb")
_SHARE_WORDS = re.compile(r"(?:^|,)(?:mps|shard)(?=[:,]|$)[^,(]*(?:\([^()]*\))?")


def _split_words(value: object) -> tuple[str, ...]:
    """Return the words of a field: a text joined by commas in 22.05, a list from 23.02 on."""
    if isinstance(value, str):
        value = value.split(",")
    return tuple(str(word) for word in value if word) if isinstance(value, Iterable) else ()


def counts(gres: str, name: str) -> dict[str, int]:
    """Return the count of each type of the resource *name* in a node's GRES; an untyped one has the type ``""``."""
    total: dict[str, int] = {}
    for resource in parse_tres(_BRACKETS.sub("", gres).replace(":no_consume", "")):  # gpu:v100:1(IDX:0-1,3)
        if resource.name == name:
            total[resource.kind or ""] = total.get(resource.kind or "", 0) + (resource.count or 0)
    return total


def count_of_type(gres_counts: Mapping[str, int], site_type: str) -> int:
    """Return the count of *site_type*; untyped resources belong to the node's only type."""
    return gres_counts.get(site_type, 0) or gres_counts.get("", 0)


def free_gpus(gres: str, gres_used: str, site_type: str) -> int:
    """Return how many of a node's GPUs of *site_type* are unused, neither whole nor shared."""
    count = count_of_type(counts(gres, "gpu"), site_type)
    whole = count_of_type(counts(gres_used, "gpu"), site_type)
    shared = (shared_gpus(gres_used, site_type, units_per_gpu(gres, site_type, name), name) for name in SHARES)
    return max(count - whole - sum(shared), 0)


def units_per_gpu(gres: str, site_type: str, name: str = "mps") -> int:
    """Return how many units of *name* one GPU of *site_type* has in a node's GRES; 0 where it has none.

    Units without a type are of all whole GPUs of the node.
    """
    gpus, units = counts(gres, "gpu"), counts(gres, name)
    own = site_type if site_type in units else ""
    whole = [kind for kind in gpus if not SLICE.search(kind.lower())] or gpus
    count = sum(gpus.get(kind, 0) for kind in ([own] if own else whole))
    return units.get(own, 0) // count if count else 0


def shared_gpus(gres_used: str, site_type: str, units_per_gpu: int, name: str = "mps") -> int:
    """Return how many of a node's GPUs are shared by *name*, one of `SHARES`.

    22.05 writes their indices, ``mps:v100:1(IDX:0)``; 24.11 a share for each GPU, ``mps:v100:80(40/100,40/100)``.
    """
    total = 0
    for share, kind, count, inside in _SHARED.findall(gres_used):
        if share != name or kind not in ("", site_type):
            continue
        indices = _RANGE.findall(inside) if "IDX:" in inside else ()
        total += sum(int(last or first) - int(first) + 1 for first, last in indices)
        total += sum(used != "0" for used, _ in _PARTS.findall(inside))

        # Without either, as many GPUs as the sum needs at least.
        total += -(-int(count) // units_per_gpu) if units_per_gpu and not inside else 0
    return total


def free_share_percent(gres_used: str, site_type: str, units_per_gpu: int) -> int:
    """Return the largest free part of a node's partly used GPUs, in percent; 0 if there is none.

    Where Slurm reports only their sum, one of them has at least the mean free.
    """
    free = [0]
    for share, kind, count, inside in _SHARED.findall(gres_used):
        if share == "mps" and kind in ("", site_type) and units_per_gpu:
            # Of GPUs that are listed with their parts each counts by itself; else the mean is all that is known.
            gpus = shared_gpus(f"mps:{count}({inside})", "", units_per_gpu)
            free += [100 - 100 * int(used) // int(units) for used, units in _PARTS.findall(inside) if int(used)]
            free += [100 - 100 * int(count) // (gpus * units_per_gpu)] if gpus and not _PARTS.search(inside) else []
    return max(free)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node: its state, GPUs, cores and memory.

    Attributes:
        gres: As configured, for example ``gpu:v100:2,mps:v100:200``.
        gres_used: As allocated, in the same form; Slurm adds indices in brackets.
        usable: Whether a job could start there.
        possible_features: What it has, or may have after a restart that Slurm makes for a job.
        open: Whether a job could start there now, as far as nothing keeps jobs away.
        idle: The same, and nothing runs there.
        planned: Whether Slurm plans a job there.
        limited_by: What limits the memory of its jobs, as in `GpuPool`; a node that says nothing has a cap.
        why_no_wall: Why that is no wall, one clause.
    """

    name: str
    gres: str
    gres_used: str
    features: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    usable: bool = True
    possible_features: tuple[str, ...] = ()
    open: bool = True
    idle: bool = False
    planned: bool = False
    memory_mib: int = 0
    cpu_count: int = 0
    used_memory_mib: int = 0
    used_cpu_count: int = 0
    limited_by: LimitedBy = "cap"
    why_no_wall: str = ""

    @property
    def gpu_count(self) -> int:
        """How many GPUs it has, of all types."""
        return sum(counts(self.gres, "gpu").values())

    @property
    def has_shares(self) -> bool:
        """Whether its GPUs can be shared by MPS."""
        return any(resource.name == "mps" for resource in parse_tres(self.gres))


def parse_node(node: Mapping[str, Any]) -> NodeState:
    """Return a node from Slurm's JSON: texts joined by commas in 22.05, lists from 23.02 on."""
    words = (*_split_words(node.get("state")), *_split_words(node.get("state_flags")))
    states = {state for word in words for state in re.findall(r"\w+", word.upper())}
    usable = not any(state.startswith(_UNUSABLE_STATES) for state in states)

    # Before 25.11 a share gets none of the cores that a node reserves for whole GPUs (RestrictedCoresPerGPU), and
    # slurmctld refuses a job for which no others are left. So such a node has no shares.
    gres = str(node.get("gres") or "")
    if node.get("res_cores_per_gpu"):
        gres = _SHARE_WORDS.sub("", gres).lstrip(",")
    limit = LIMIT_WORD.search(str(node.get("comment") or ""))
    return NodeState(
        name=str(node.get("name", "")),
        gres=gres,
        gres_used=str(node.get("gres_used") or ""),
        features=_split_words(node.get("active_features") or node.get("features")),
        partitions=_split_words(node.get("partitions")),
        usable=usable,
        possible_features=_split_words(node.get("features")),
        open=usable and not any(state.startswith(_UNAVAILABLE_STATES) for state in states),
        idle="IDLE" in states and states <= {"IDLE", "PLANNED"},
        planned="PLANNED" in states,
        memory_mib=int(node.get("real_memory") or 0),
        cpu_count=int(node.get("cpus") or 0),
        used_memory_mib=int(node.get("alloc_memory") or 0),
        used_cpu_count=int(node.get("alloc_cpus") or 0),
        limited_by=next((word for word in get_args(LimitedBy) if limit and word == limit[1]), "cap"),
        why_no_wall=(limit[2] or "").replace("~", " ") if limit else "a node has not said yet what it has",
    )


@cache
def pyslurm_version() -> tuple[int, int] | None:
    """Return major and minor of the installed PySlurm, ``None`` where there is none."""
    try:
        return scontrol.parse_version(importlib.metadata.version("pyslurm"))
    except (importlib.metadata.PackageNotFoundError, ValueError, IndexError):
        return None


def read_nodes(version: tuple[int, int]) -> Iterable[NodeState]:
    """Return the nodes, from PySlurm where it is installed and of Slurm's own *version*, else from Slurm's commands.

    Raises:
        RequestError: slurmctld does not answer.
    """
    # PySlurm must equal Slurm's major.minor: it is built against that libslurm.
    return (_pyslurm_nodes() if pyslurm_version() == version else None) or map(parse_node, scontrol.nodes())


def _pyslurm_nodes() -> list[NodeState] | None:
    """Return PySlurm's nodes; ``None`` if it fails, so that Slurm's commands are used.

    Its newer ``pyslurm.Nodes`` does not report the shares in use (22.5 no GRES at all, later what Slurm accounts), so
    its older table is read, which has Slurm's own texts; 25.11 has that no more.
    """
    nodes = []
    try:
        import pyslurm  # optional, and of Slurm's own version only

        for node in pyslurm.node().get().values():
            # The table names some fields otherwise than Slurm's JSON, and has lists where that has texts.
            names = {
                "gres": ",".join(_split_words(node.get("gres"))),
                "gres_used": ",".join(_split_words(node.get("gres_used"))),
                "state": str(node.get("state", "")).split("+"),
                "active_features": node.get("features_active"),
                "alloc_memory": node.get("alloc_mem"),
            }
            nodes.append(parse_node({**node, **names}))
    except Exception as error:  # a binding to C of another project's
        _log.warning("PySlurm cannot list the nodes (%s); Slurm's commands are asked instead", error)
        return None
    return nodes


def free_whole_gpus(node: NodeState) -> int:
    """Return how many GPUs of *node*, of any type, are unused."""
    return sum(free_gpus(node.gres, node.gres_used, kind) for kind in counts(node.gres, "gpu"))


def free_units(node: NodeState) -> int:
    """Return the largest free part of a GPU of *node*, in its MPS units."""
    # A share lies on one GPU, so the sum of free parts is of no use.
    kinds = counts(node.gres, "gpu")
    return max(
        (units_per_gpu(node.gres, kind) * node_room(node, kind).share_percent // 100 for kind in kinds), default=0
    )


def node_room(node: NodeState, site_type: str) -> Room:
    """Return the room on *node* for a job on a GPU of *site_type*; none where no job could start."""
    if not node.open:
        return Room()
    return Room(
        share_percent=100 if free_gpus(node.gres, node.gres_used, site_type) else partly_free_percent(node, site_type),
        cpu_count=max(node.cpu_count - node.used_cpu_count, 0),
        host_memory_bytes=max(node.memory_mib - node.used_memory_mib, 0) * MIB,
        node=node.name,
    )


def partly_free_percent(node: NodeState, site_type: str) -> int:
    """Return the largest free part of the partly used GPUs of *node*, in percent."""
    return free_share_percent(node.gres_used, site_type, units_per_gpu(node.gres, site_type))
