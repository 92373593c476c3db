"""MIG slices as rows of the catalogue: each is a GPU of its own, with the SMs, memory, bandwidth and cache that it has.

A slice is called by its GPU and its profile, ``a100-sxm4-40gb:3g.20gb``; so are its aliases. A profile alone is one too
where no other kind of GPU has it: ``3g.20gb`` is an A100's of 40 GB, ``1g.10gb`` could be anybody's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from gpusage.devices.shares import part_of
from gpusage_hooks.types import Gpu
from gpusage_hooks.units import MIB


def slices_of(gpus: Iterable[Gpu]) -> Iterator[Gpu]:
    """Yield the slices that the GPUs in *gpus*, the whole catalogue, can be cut into."""
    by_name = {gpu.name: gpu for gpu in gpus}
    for kind in json.loads(files("gpusage.devices").joinpath("slices.json").read_text(encoding="utf-8")):
        for board in kind["gpus"]:
            for row in kind["slices"]:
                others = row["aliases"] if board == kind["gpus"][0] else ()
                yield _slice(by_name[board], kind, row, others)


def _slice(board: Gpu, kind: Mapping[str, Any], row: Mapping[str, Any], others: Iterable[str]) -> Gpu:
    profile, memory_part = row["profile"], row["memory_parts"] / kind["parts"]
    return replace(
        part_of(board, row["sm_count"] / board.sm_count),
        name=f"{board.name}:{profile}",
        aliases=(*(f"{alias}:{profile}" for alias in board.aliases), *others),
        memory_bytes=row["usable_memory_mib"] * MIB,
        bandwidth_bytes_per_s=board.bandwidth_bytes_per_s * memory_part,
        l2_bytes=int(board.l2_bytes * memory_part),
        source=kind["source"],
        cut_from=board.name,
    )
