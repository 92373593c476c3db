"""The ledger: shares that were given since a cluster was last seen, and so what it has left.

Invariants:

1. A share is claimed on every GPU type where it may start, by an array for each task, so that what is left is never too
   much.
2. A claim holds until an observation that was begun `START_LIMIT_S` after it: jobs do not start at once.
3. Any thread may claim, withdraw and look.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpusage.policies.place import admits
from gpusage.verdict import Verdict
from gpusage_hooks.types import Cluster, Code, GpuPool, NodeKind, Room
from gpusage_hooks.units import WHOLE_PERCENT

START_LIMIT_S = 3.0
"""How long a workload manager takes to start a job that has room.

Source: SchedMD's scheduler, parameter ``batch_sched_delay``: up to 3 seconds.
"""
MOST_AVOIDING = 64
"""Kinds of claims whose avoided nodes count; a decision stays quick, however many nodes users exclude in a burst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Shares of one kind that were given to one job.

    Attributes:
        site_types: The GPU types where each may start.
        share_percent: 100 is a whole GPU, or a slice.
        count: How many: an array has one for each task that may run at once.
        avoided_nodes: Where none of them starts.
    """

    manager: str
    site_types: tuple[str, ...]
    share_percent: int
    count: int = 1
    avoided_nodes: tuple[str, ...] = ()


class Ledger:
    """Claims, by the second in which they were made."""

    def __init__(self) -> None:
        self._claims: dict[int, Counter[Claim]] = {}
        self._lock = threading.Lock()

    def add(self, claim: Claim | None) -> None:
        """Count *claim*, where there is one."""
        if claim is None:
            return
        with self._lock:
            self._claims.setdefault(int(time.monotonic()), Counter())[claim] += 1

    def withdraw(self, claim: Claim | None) -> None:
        """Take back one like *claim*: its job did not get the share."""
        with self._lock:
            for claims in self._claims.values():
                if claim is not None and claims[claim] > 0:
                    claims[claim] -= 1
                    return

    def forget(self, manager: str, begun_s: float) -> None:
        """Drop the claims on *manager* that an observation has seen, which was begun at *begun_s*, monotonic."""
        with self._lock:
            for second, claims in [*self._claims.items()]:
                if second + 1 > begun_s - START_LIMIT_S:
                    continue
                kept = Counter({claim: count for claim, count in claims.items() if claim.manager != manager})
                self._claims[second] = kept
                if not kept:
                    del self._claims[second]

    def left_of(self, cluster: Cluster) -> Cluster:
        """Return *cluster* with the room that is left of what was seen."""
        with self._lock:
            claims = sum(self._claims.values(), Counter[Claim]())
        return left_of(cluster, claims)


def left_of(cluster: Cluster, claims: Mapping[Claim, int]) -> Cluster:
    """Return *cluster* with the room that *claims*, each made so many times, leave of what was seen."""
    own = {claim: times * claim.count for claim, times in claims.items() if claim.manager == cluster.manager}
    if not own:
        return cluster
    return replace(cluster, pools=tuple(_left_of_pool(pool, own) for pool in cluster.pools))


def claim_of(verdict: Verdict, cluster: Cluster) -> Claim | None:
    """Return what *verdict* takes of *cluster* where it gives a share or a slice; ``None`` where it gives neither."""
    request = verdict.decision.request
    part = request.mps_thread_percent or (WHOLE_PERCENT if request.required_gpus else None)
    if verdict.carried_out is not Code.REWRITE or part is None:
        return None
    reached = cluster.within(request.partitions, request.scopes, request.node_features).pools
    anywhere = (pool.site_type for pool in reached if pool.mps_per_gpu and admits(pool, request))
    return Claim(
        manager=cluster.manager,
        site_types=request.required_gpus or tuple(anywhere),
        share_percent=part,
        count=request.task_count,
        avoided_nodes=request.avoided_nodes,
    )


def _left_of_pool(pool: GpuPool, claims: Mapping[Claim, int]) -> GpuPool:
    here = {claim: count for claim, count in claims.items() if pool.site_type in claim.site_types}
    if not here:
        return pool
    claimed = Counter[int]()
    for claim, count in here.items():
        claimed[claim.share_percent] += count
    shared = pool.free_share_percent or 0
    # A part that is a whole GPU is one of the free ones, which count already.
    free, part = _left(pool.free_gpu_count, 0 if pool.free_gpu_count and shared == WHOLE_PERCENT else shared, claimed)
    kinds = (_left_of_kind(kind, kind.room, claimed) if kind.room else kind for kind in pool.node_kinds)
    kinds = (replace(kind, rooms=_left_of_rooms(kind.rooms, here)) if kind.rooms else kind for kind in kinds)
    return replace(pool, free_gpu_count=free, free_share_percent=part, node_kinds=tuple(kinds))


def _left_of_kind(kind: NodeKind, room: Room, claimed: Mapping[int, int]) -> NodeKind:
    """Return *kind* without what was claimed; cores and memory of its nodes are not counted."""
    free, part = _left(kind.free_gpu_count, 0 if kind.free_gpu_count else room.share_percent, claimed)
    share_percent = WHOLE_PERCENT if free else part
    return replace(kind, free_gpu_count=free, room=replace(room, share_percent=share_percent))


def _left_of_rooms(rooms: Sequence[Room], claims: Mapping[Claim, int]) -> tuple[Room, ...]:
    """Return *rooms* without what *claims*, counts, take: as many of each, and of those with most room one more."""
    parts = {room.node: room.share_percent for room in rooms}
    alike = Counter[tuple[int, tuple[str, ...]]]()
    for claim, count in claims.items():
        kind = claim.share_percent, claim.avoided_nodes
        alike[kind if kind in alike or len(alike) < MOST_AVOIDING else (claim.share_percent, ())] += count
    for (percent, avoided), count in alike.items():
        usable = [node for node, part in parts.items() if part >= percent and node not in avoided]
        usable.sort(key=parts.__getitem__, reverse=True)
        each, more = divmod(count, len(usable)) if usable else (0, 0)
        for place, node in enumerate(usable[: None if each else more]):
            parts[node] = max(parts[node] - percent * (each + (place < more)), 0)
    return tuple(
        room if parts[room.node] == room.share_percent else replace(room, share_percent=parts[room.node])
        for room in rooms
    )


def _left(free: int, part: int, claimed: Mapping[int, int]) -> tuple[int, int]:
    """Return the free GPUs and the largest part of a shared one that *claimed*, counts by percentage, leaves."""
    for percent, count in claimed.items():
        beside = min(count, part // percent)
        part -= beside * percent
        per_gpu = WHOLE_PERCENT // percent
        begun = min(free, math.ceil((count - beside) / per_gpu))
        if begun:
            on_last = min(count - beside - (begun - 1) * per_gpu, per_gpu)
            free, part = free - begun, max(part, WHOLE_PERCENT - on_last * percent)
    return free, part
