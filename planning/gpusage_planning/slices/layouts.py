"""MIG layouts: what a GPU can be cut into by NVIDIA's placement rules, and how many GPUs of a site are cut so.

A profile takes a part of the eight (or four) parts of the memory, and as many of the seven (or four) of the SMs as its
name says. It begins at a multiple of its own parts of the memory, and both must fit behind that.

Source:
    NVIDIA Multi-Instance GPU User Guide: the placements that ``nvidia-smi mig -lgipp`` lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd

from gpusage.devices.catalogue import Catalogue
from gpusage_hooks.types import Gpu
from gpusage_planning.simulator.fleet import Fleet, GpuType

Division = tuple[str, ...]
"""The profiles on one GPU, the largest first; none for a whole GPU."""
WHOLE: Division = ()
Layout = Mapping[tuple[str, Division], int]
"""How many GPUs are divided in a way, by the site's name of the GPU and that way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The GPUs of one type, whole or cut.

    Attributes:
        whole: All of them; of those that are cut today, as many as their slices need at least.
        slices: By profile, as many as there are today.
        divisions: What one of them can be cut into, `WHOLE` first.
    """

    whole: GpuType
    slices: Mapping[str, GpuType]
    divisions: Sequence[Division]

    def gres_type(self, profile: str) -> str:
        """Return the type in slurm.conf of a slice of *profile*, or of the whole GPU where that is empty.

        AutoDetect=nvml takes a type that is part of NVML's name, ``nvidia_h100_80gb_hbm3_1g.10gb``, the longest first:
        ``h100_1g.10gb`` is none, so a short name of the GPU is left out.
        """
        if not profile or self.slices[profile].gpu_count:
            return self.slices[profile].name if profile else self.whole.name
        today = [one.name.lower().partition(other)[0] for other, one in self.slices.items() if one.gpu_count]
        own = "" if len(self.whole.name) <= max(map(len, self.slices)) else f"{self.whole.name}_"
        return next(iter(today), own) + profile

    def types(self, layout: Layout) -> Iterator[GpuType]:
        """Yield the whole GPUs and each slice as *layout* has them, also those that it has none of."""
        counts = Counter[str]()
        for (name, division), count in layout.items():
            for profile in division or ("",) if name == self.whole.name else ():
                counts[profile] += count
        size = gcd(counts[""], self.whole.node_gpu_count) if counts[""] else 1
        yield replace(self.whole, gpu_count=counts[""], gpus_per_node=size)
        for profile, one in self.slices.items():
            yield replace(one, gpu_count=counts[profile], gpus_per_node=1)


def boards_of(fleet: Fleet, catalogue: Catalogue) -> tuple[Board, ...]:
    """Return the GPUs of *fleet*, those that are cut today put together again."""
    by_name = {one.gpu.name if one.gpu else one.name: one for one in fleet.types}
    boards = []
    for name, board in dict.fromkeys((board_of(one), one.gpu is not None) for one in fleet.types):
        row = catalogue.find(name) if board else None
        boards.append(_board(by_name, name, row, catalogue))
    return tuple(boards)


def _board(by_name: Mapping[str, GpuType], name: str, board: Gpu | None, catalogue: Catalogue) -> Board:
    rows = [row for row in catalogue if row.parent_gpu == name]
    cut = [by_name[row.name] for row in rows if row.name in by_name]
    whole = by_name.get(name) or _type(
        cut[0].name.lower().partition(profile_of(cut[0]))[0].rstrip("_-:.") or name, board
    )

    # A slice that is not there yet has a name that no other GPU's has.
    types = (by_name.get(row.name) or _type(f"{whole.name}_{row.name.partition(':')[2]}", row) for row in rows)
    slices = {profile_of(one): one for one in types}

    # Of SMs and of memory a GPU has only so many parts.
    most = max(map(_compute, slices), default=1)
    parts = [
        (one.gpu_count * _compute(profile_of(one)) / most, one.gpu_count * _memory_share(one, board)) for one in cut
    ]
    count = whole.gpu_count + max((ceil(round(sum(each), 6)) for each in zip(*parts, strict=True)), default=0)
    return Board(whole=replace(whole, gpu_count=count), slices=slices, divisions=divisions(slices, board))


def divisions(slices: Mapping[str, GpuType], board: Gpu | None) -> tuple[Division, ...]:
    """Return what one *board* can be cut into by the profiles of *slices*, as far as anything fits, after `WHOLE`."""
    profiles = sorted(slices, key=_compute, reverse=True)
    most = max(map(_compute, slices), default=0)
    parts = most + most % 2  # of the memory: 8 beside 7 of the SMs, else as many

    def filled(start: int) -> Iterator[Division]:
        """Yield all that may stand from the part *start* on."""
        yield from filled(start + 1) if start < parts else (WHOLE,)
        for profile in profiles:
            size = round(_memory_share(slices[profile], board) * parts)
            if start % size == 0 and start + size <= parts and start + _compute(profile) <= most:
                yield from ((profile, *rest) for rest in filled(start + size))

    cuts = {tuple(sorted(each, key=profiles.index)) for each in filled(0)}
    # One instance on the whole GPU gains nothing over a GPU that is not cut.
    full = [each for each in cuts if each and _compute(each[0]) < most]
    return (WHOLE, *sorted(one for one in full if not any(Counter(one) < Counter(other) for other in full)))


def board_of(one: GpuType) -> str:
    """Return the whole GPU that *one* is, or is cut from."""
    return one.gpu.board if one.gpu else one.name


def profile_of(one: GpuType) -> str:
    """Return the profile of a slice; empty for a whole GPU."""
    return one.gpu.name.partition(":")[2] if one.gpu else ""


def _type(name: str, gpu: Gpu | None) -> GpuType:
    return GpuType(
        name=name, gpu_count=0, memory_bytes=float(gpu.memory_bytes) if gpu else 0.0, gpu=gpu, gpus_per_node=1
    )


def _compute(profile: str) -> int:
    return int(profile.partition("g")[0])


def _memory_share(one: GpuType, board: Gpu | None) -> float:
    return one.gpu.bandwidth_bytes_per_s / board.bandwidth_bytes_per_s if one.gpu and board else 0.0
