"""GPU time that shares would free, by a replay of when their jobs ran.

Invariants:

1. k jobs on one GPU at a time free k - 1 GPUs; what is left of a GPU beside a job frees nothing.
2. A job starts when it did. On its share it takes longer, by its price beside partners.
3. A share is placed on the fullest GPU of its type that it fits on and that others hold; else on one of its own.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpusage_hooks.units import WHOLE_PERCENT

STAY = np.dtype(
    [
        ("started_at_s", "f8"),
        ("duration_s", "f8"),
        ("slowdown", "f8"),
        ("worst_slowdown", "f8"),
        ("share_percent", "u1"),
    ]
)
"""A job's time on one whole GPU, and the share that would have been enough: its size, and the run time on it beside
partners over the run time on the whole GPU. 33 bytes, because a month of a large site has half a million."""
Stays = NDArray[np.void]
"""Of `STAY`."""
_BLOCK_STAYS = 10_000


@dataclass(slots=True)
class _Pool:
    """The GPUs that shares hold, by their numbers; a lower number is held for longer.

    Attributes:
        ends: When each share ends, with its GPU and its size; a heap.
        rooms: Free percents of each GPU.
        held_until_s: When the last of a GPU's shares ends.
        by_room: The GPUs that had a room when they were entered; heaps.
        known_rooms: The keys of *by_room*, ascending.
    """

    ends: list[tuple[float, int, int]] = field(default_factory=list)
    rooms: dict[int, int] = field(default_factory=dict)
    held_until_s: dict[int, float] = field(default_factory=dict)
    by_room: dict[int, list[int]] = field(default_factory=dict)
    known_rooms: list[int] = field(default_factory=list)
    count: int = 0

    def place(self, now_s: float, end_s: float, percent: int) -> float:
        """Hold *percent* of a GPU from *now_s* to *end_s*; return until when others hold this GPU."""
        while self.ends and self.ends[0][0] <= now_s:
            _, number, freed_percent = heappop(self.ends)
            self._enter(number, self.rooms[number] + freed_percent)

        chosen = self._fullest(percent)
        if chosen is None:
            chosen, self.count = self.count, self.count + 1
            self.held_until_s[chosen] = now_s
            self.rooms[chosen] = WHOLE_PERCENT
        held_until_s = self.held_until_s[chosen]
        heappush(self.ends, (end_s, chosen, percent))
        self.held_until_s[chosen] = max(held_until_s, end_s)
        self._enter(chosen, self.rooms[chosen] - percent)
        return held_until_s

    def _fullest(self, percent: int) -> int | None:
        for room in self.known_rooms:
            gpus = self.by_room[room] if room >= percent else []
            while gpus:
                # Its room may have changed since it was entered.
                if self.rooms.get(gpus[0]) == room:
                    return gpus[0]
                heappop(gpus)
        return None

    def _enter(self, number: int, room: int) -> None:
        self.rooms[number] = room
        if room == WHOLE_PERCENT:
            del self.rooms[number], self.held_until_s[number]
            return
        if room not in self.by_room:
            self.by_room[room] = []
            insort(self.known_rooms, room)
        heappush(self.by_room[room], number)


def freed_times_s(stays: Stays, pools: NDArray[np.intp], price: str = "slowdown") -> NDArray[np.float64]:
    """Return the GPU seconds that the share of each of *stays* would have freed; below 0 where it costs more.

    Args:
        stays: In any order.
        pools: Number of each job's pool: the GPUs of a type, maybe of one user; see `freed_by`.
        price: The field that has how many times as long each job takes.
    """
    freed_s, known = np.zeros(len(stays)), defaultdict[int, _Pool](_Pool)
    order = np.argsort(stays["started_at_s"], kind="stable")
    for begin in range(0, len(order), _BLOCK_STAYS):
        block = order[begin : begin + _BLOCK_STAYS]
        columns = [stays[name][block].tolist() for name in ("started_at_s", "duration_s", price, "share_percent")]
        rows = zip(block.tolist(), pools[block].tolist(), *columns, strict=True)
        for place, pool, now_s, duration_s, slowdown, percent in rows:
            end_s = now_s + duration_s * slowdown
            # A GPU that another job holds anyway costs only the time beyond.
            held_until_s = known[pool].place(now_s, end_s, percent)
            freed_s[place] = duration_s - max(0.0, end_s - held_until_s)
    return freed_s


def freed_by(stays: Mapping[tuple[str, ...], bytes], gpu_at: int, user_at: int) -> Mapping[tuple[str, ...], Any]:
    """Return the GPU seconds that the shares of each group free, all placed together.

    Args:
        stays: Of each group, as bytes of `STAY`; a group's names include the GPU's type and the user.
        gpu_at: Place of the type among the names.
        user_at: Place of the user. The first figure is with one user's jobs on a GPU at a time, as without a wall
            around each job's memory, the second with any users', and the third the first at the worst prices.
    """
    if not stays:
        return {}
    arrays = [np.frombuffer(packed, STAY) for packed in stays.values()]
    together, counts = np.concatenate(arrays), [len(array) for array in arrays]
    sums = []
    of_one, of_any = (gpu_at, user_at), (gpu_at,)
    for places, price in ((of_one, "slowdown"), (of_any, "slowdown"), (of_one, "worst_slowdown")):
        numbers: dict[tuple[str, ...], int] = {}
        pools = [numbers.setdefault(tuple(names[at] for at in places), len(numbers)) for names in stays]
        freed_s = freed_times_s(together, np.repeat(pools, counts), price)
        sums.append(np.bincount(np.repeat(np.arange(len(counts)), counts), freed_s).tolist())
    return dict(zip(stays, zip(*sums, strict=True), strict=True))
