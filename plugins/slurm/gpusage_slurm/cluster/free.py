"""What a node's lists of generic resources say of its GPUs: how many of each type, and what of them is free."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpusage_slurm.tres import parse_list

_BRACKETS = re.compile(r"\([^()]*\)")
_SHARED = re.compile(r"\bmps(?::([^:(,]+))?:(\d+)(?:\(([^()]*)\))?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_PARTS = re.compile(r"(\d+)/(\d+)")


def counts(gres: str, name: str) -> dict[str, int]:
    """Return the count of each type of the resource *name* in a node's list; no type is an empty one."""
    total: dict[str, int] = {}
    for resource in parse_list(_without_brackets(gres)):
        if resource.name == name:
            total[resource.kind or ""] = total.get(resource.kind or "", 0) + (resource.count or 0)
    return total


def of_type(found: Mapping[str, int], site_type: str) -> int:
    """Return the count of *site_type*; what has no type is of the node's only one."""
    return found.get(site_type, 0) or found.get("", 0)


def free_gpus(gres: str, gres_used: str, site_type: str) -> int:
    """Return how many of a node's GPUs of *site_type* nobody uses, whole or shared."""
    count = of_type(counts(gres, "gpu"), site_type)
    units = of_type(counts(gres, "mps"), site_type) // count if count else 0
    whole = of_type(counts(gres_used, "gpu"), site_type)
    return max(count - whole - shared_gpus(gres_used, site_type, units), 0)


def shared_gpus(gres_used: str, site_type: str, units_per_gpu: int) -> int:
    """Return how many of a node's GPUs are shared.

    22.05 writes their indices, ``mps:v100:1(IDX:0)``; 24.11 a share for each GPU, ``mps:v100:80(40/100,40/100)``.
    """
    total = 0
    for kind, count, inside in _SHARED.findall(gres_used):
        if kind in ("", site_type):
            used = _RANGE.findall(inside) if "IDX:" in inside else ()
            total += sum(int(last or first) - int(first) + 1 for first, last in used)
            total += sum(used != "0" for used, _ in _PARTS.findall(inside))
            total += -(-int(count) // units_per_gpu) if units_per_gpu and not inside else 0
    return total


def free_share_percent(gres_used: str, site_type: str, units_per_gpu: int) -> int:
    """Return the largest part that is free of those of a node's GPUs that are shared now, in percent; 0 for none.

    Where Slurm tells no more than their sum, one of them has at least the mean free.
    """
    free = [0]
    for kind, count, inside in _SHARED.findall(gres_used):
        if kind in ("", site_type) and units_per_gpu:
            gpus = shared_gpus(f"mps:{count}({inside})", "", units_per_gpu)
            free += [100 - 100 * int(used) // int(units) for used, units in _PARTS.findall(inside) if int(used)]
            free += [100 - 100 * int(count) // (gpus * units_per_gpu)] if gpus and not _PARTS.search(inside) else []
    return max(free)


def _without_brackets(text: str) -> str:
    """Return ``gpu:v100:1`` of ``gpu:v100:1(IDX:0-1,3)``."""
    return _BRACKETS.sub("", text)
