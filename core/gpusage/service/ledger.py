"""The ledger: shares that were given since a cluster was last seen, and so what it has left; and who asked of late.

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
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpusage.policies.place import admits
from gpusage.verdict import Verdict
from gpusage_hooks.types import Cluster, Code, GpuPool, NodeKind, Room
from gpusage_hooks.units import WHOLE_PERCENT

START_LIMIT_S = 3.0
"""How long a workload manager takes to start a job that has room.

Source: SchedMD's scheduler, parameter ``batch_sched_delay``: up to 3 seconds.
"""
REMEMBERED_RIVALS = 64
"""Jobs of late by which a generation is chosen."""
REMEMBERED_OF_ONE = 8
"""Of one user: else many jobs, which need never run, would send everybody else's to slower GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Shares of one kind that were given to one job.

    Attributes:
        site_types: The GPU types where each may start.
        share_percent: 100 is a whole GPU, or a slice.
        count: How many: an array has one for each task that may run at once.
    """

    manager: str
    site_types: tuple[str, ...]
    share_percent: int
    count: int = 1


class Ledger:
    """Claims, by the second in which they were made, and rivals, by manager."""

    def __init__(self) -> None:
        self._claims: dict[int, Counter[Claim]] = {}
        self._rivals: dict[str, deque[tuple[str, Mapping[str, float]]]] = {}
        self._lock = threading.Lock()

    def add(self, claim: Claim | None) -> None:
        """Count *claim*, where there is one."""
        if claim is None:
            return
        with self._lock:
            self._claims.setdefault(int(time.monotonic()), Counter())[claim] += 1

    def remember(self, verdict: Verdict | None, fields: Mapping[str, str]) -> None:
        """Count a job among those that compete for fast GPUs, where it may choose.

        Args:
            verdict: Its own, or one that holds for it.
            fields: Of its own submission.
        """
        if verdict is None or verdict.job is None or verdict.is_dry_run or not verdict.decision.step_times_s:
            return
        user = replace(verdict.job.submitter, fields=fields).user
        with self._lock:
            rivals = self._rivals.setdefault(verdict.submission.manager, deque(maxlen=REMEMBERED_RIVALS))
            own = [rival for rival in rivals if rival[0] == user]
            if len(own) == REMEMBERED_OF_ONE:
                rivals.remove(own[0])
            rivals.append((user, verdict.decision.step_times_s))

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
        """Return *cluster* with the room that is left of what was seen, and the jobs of late."""
        with self._lock:
            claims = sum(self._claims.values(), Counter[Claim]())
            rivals = tuple(times_s for _, times_s in self._rivals.get(cluster.manager, ()))
        return left_of(replace(cluster, rivals=rivals) if rivals else cluster, claims)


def left_of(cluster: Cluster, claims: Mapping[Claim, int]) -> Cluster:
    """Return *cluster* with the room that *claims*, each made so many times, leave of what was seen."""
    claimed: dict[str, Counter[int]] = {}
    for claim, times in claims.items():
        for site_type in claim.site_types if claim.manager == cluster.manager else ():
            claimed.setdefault(site_type, Counter())[claim.share_percent] += times * claim.count
    if not claimed:
        return cluster
    pools = tuple(_left_of_pool(pool, claimed.get(pool.site_type, {})) for pool in cluster.pools)
    return replace(cluster, pools=pools)


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
    )


def _left_of_pool(pool: GpuPool, claimed: Mapping[int, int]) -> GpuPool:
    if not claimed:
        return pool
    shared = pool.free_share_percent or 0
    # A part that is a whole GPU is one of the free ones, which count already.
    free, part = _left(pool.free_gpu_count, 0 if pool.free_gpu_count and shared == WHOLE_PERCENT else shared, claimed)
    kinds = tuple(_left_of_kind(kind, kind.room, claimed) if kind.room else kind for kind in pool.node_kinds)
    return replace(pool, free_gpu_count=free, free_share_percent=part, node_kinds=kinds)


def _left_of_kind(kind: NodeKind, room: Room, claimed: Mapping[int, int]) -> NodeKind:
    """Return *kind* without what was claimed; cores and memory of its nodes are not counted."""
    free, part = _left(kind.free_gpu_count, 0 if kind.free_gpu_count else room.share_percent, claimed)
    share_percent = WHOLE_PERCENT if free else part
    return replace(kind, free_gpu_count=free, room=replace(room, share_percent=share_percent))


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
