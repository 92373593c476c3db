"""The last moments of a cluster, which its last observation cannot show: shares in between, and who competes.

Invariants:

1. A share is reserved on every GPU type where it may start, and for an array once per task, so that the remaining
   capacity is never overestimated.
2. A reservation holds until an observation that began `START_LIMIT_S` after it: jobs do not start at once.
3. Any thread may add, withdraw and read reservations.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpusage.decisions.outcome import Outcome
from gpusage.policies.candidates import admits
from gpusage_hooks.types import Cluster, Code, GpuPool, Room
from gpusage_hooks.units import WHOLE_PERCENT

START_LIMIT_S = 3.0
"""How long a workload manager takes to start a job that has room.

Source: SchedMD's scheduler, parameter ``batch_sched_delay``: up to 3 seconds.
"""
REMEMBERED_JOBS = 64
"""Of one manager; a user's newest each."""
MOST_AVOIDING = 64
"""Kinds of reservations whose avoided nodes count; a decision stays quick, however many nodes users exclude in a
burst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
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


class PendingReservations:
    """Reservations, by the second in which they were made."""

    def __init__(self) -> None:
        self._reservations: dict[int, Counter[Reservation]] = {}
        self._lock = threading.Lock()

    def add(self, reservation: Reservation | None) -> None:
        """Count *reservation*, where there is one."""
        if reservation is None:
            return
        with self._lock:
            self._reservations.setdefault(int(time.monotonic()), Counter())[reservation] += 1

    def withdraw(self, reservation: Reservation | None) -> None:
        """Take back one like *reservation*: its job did not get the share."""
        with self._lock:
            for reservations in self._reservations.values():
                if reservation is not None and reservations[reservation] > 0:
                    reservations[reservation] -= 1
                    return

    def forget(self, manager: str, begun_s: float) -> None:
        """Drop the reservations of *manager* that an observation begun at *begun_s* (monotonic) shows."""
        with self._lock:
            for second, reservations in [*self._reservations.items()]:
                # Not all of this second's jobs may have started when the observation began.
                if second + 1 > begun_s - START_LIMIT_S:
                    continue
                others = Counter({each: count for each, count in reservations.items() if each.manager != manager})
                if others:
                    self._reservations[second] = others
                else:
                    del self._reservations[second]

    def remaining_capacity(self, cluster: Cluster) -> Cluster:
        """Return *cluster* with the room that is left of its last observation."""
        with self._lock:
            reservations = sum(self._reservations.values(), Counter[Reservation]())
        return remaining_capacity(cluster, reservations)


class RecentJobs:
    """Seconds per step on each GPU type, of recent jobs that compete for fast GPUs, by manager.

    A new job's generation is chosen by its gain compared with theirs. Each user counts once, by the newest such job:
    otherwise many jobs of one user, which need never run, would send everybody else's to slower GPUs
    (docs/decisions/experience.md). Any thread may remember and ask.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, Mapping[str, float]]] = {}
        self._lock = threading.Lock()

    def remember(self, outcome: Outcome | None, fields: Mapping[str, str]) -> None:
        """Count a job among them, where it may choose.

        Args:
            outcome: Its own, or one that holds for it.
            fields: Of its own submission.
        """
        if outcome is None or outcome.job is None or outcome.is_dry_run or not outcome.decision.step_times_s:
            return

        user = replace(outcome.job.submitter, fields=fields).user
        with self._lock:
            # A dict keeps the order of insertion: the user's newest job is the last.
            jobs = self._jobs.setdefault(outcome.submission.manager, {})
            jobs.pop(user, None)
            jobs[user] = outcome.decision.step_times_s
            if len(jobs) > REMEMBERED_JOBS:
                del jobs[next(iter(jobs))]

    def of(self, manager: str) -> tuple[Mapping[str, float], ...]:
        """Return `Cluster.recent_jobs` of *manager*, oldest first."""
        with self._lock:
            return tuple(self._jobs.get(manager, {}).values())


def remaining_capacity(cluster: Cluster, reservations: Mapping[Reservation, int]) -> Cluster:
    """Return *cluster* with the room that *reservations*, each made so many times, leave of its last observation."""
    own = {}
    for reservation, times in reservations.items():
        if reservation.manager == cluster.manager:
            own[reservation] = times * reservation.count
    if not own:
        return cluster
    return replace(cluster, pools=tuple(_left_of_pool(pool, own) for pool in cluster.pools))


def reservation_of(outcome: Outcome, cluster: Cluster) -> Reservation | None:
    """Return the part of *cluster* that *outcome* takes by a share or a slice; ``None`` where it gives neither."""
    request = outcome.decision.request
    # A slice is one of the pool's GPUs.
    part = request.mps_thread_percent or (WHOLE_PERCENT if request.bound_types else None)
    if outcome.applied_code is not Code.REWRITE or part is None:
        return None

    # A share that is bound to no type may start on any that is divided and reached.
    reached = cluster.within(request.partitions, request.scopes, request.node_features).pools
    anywhere = (pool.site_type for pool in reached if pool.mps_per_gpu and admits(pool, request))
    return Reservation(
        manager=cluster.manager,
        site_types=request.bound_types or tuple(anywhere),
        share_percent=part,
        count=request.task_count * max(request.gpu_count, 1),
        avoided_nodes=request.avoided_nodes,
    )


def _left_of_pool(pool: GpuPool, reservations: Mapping[Reservation, int]) -> GpuPool:
    # An array's tasks, and a share that may start on several types, are reserved on each of them.
    here = {
        reservation: count for reservation, count in reservations.items() if pool.site_type in reservation.site_types
    }
    if not here:
        return pool
    claimed = Counter[int]()
    for reservation, count in here.items():
        claimed[reservation.share_percent] += count

    # A part that is a whole GPU is one of the free ones, which count already.
    shared = pool.free_share_percent or 0
    free, part = _remaining(
        pool.free_gpu_count, 0 if pool.free_gpu_count and shared == WHOLE_PERCENT else shared, claimed
    )

    # Cores and memory of the nodes are not counted.
    kinds = []
    for kind in pool.node_kinds:
        left = kind
        if kind.room:
            partly_free = 0 if kind.free_gpu_count else kind.room.share_percent
            whole, partly = _remaining(kind.free_gpu_count, partly_free, claimed)
            room = replace(kind.room, share_percent=WHOLE_PERCENT if whole else partly)
            left = replace(kind, free_gpu_count=whole, room=room)
        kinds.append(replace(left, rooms=_left_of_rooms(kind.rooms, here)) if kind.rooms else left)
    return replace(pool, free_gpu_count=free, free_share_percent=part, node_kinds=tuple(kinds))


def _left_of_rooms(rooms: Sequence[Room], reservations: Mapping[Reservation, int]) -> tuple[Room, ...]:
    """Return *rooms* less *reservations*: as many of each, and of those with most room one more."""
    parts = {room.node: room.share_percent for room in rooms}

    # Beyond the limit reservations count without the nodes that they avoid: the room is underestimated, if anything.
    alike = Counter[tuple[int, tuple[str, ...]]]()
    for reservation, count in reservations.items():
        kind = reservation.share_percent, reservation.avoided_nodes
        alike[kind if kind in alike or len(alike) < MOST_AVOIDING else (reservation.share_percent, ())] += count

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


def _remaining(free: int, part: int, claimed: Mapping[int, int]) -> tuple[int, int]:
    """Return the free GPUs and the largest part of a shared one that *claimed*, counts by percentage, leaves."""
    for percent, count in claimed.items():
        on_shared_count = min(count, part // percent)
        part -= on_shared_count * percent

        # The rest opens free GPUs; the last of them is shared in part.
        per_gpu = WHOLE_PERCENT // percent
        opened_count = min(free, math.ceil((count - on_shared_count) / per_gpu))
        if opened_count:
            on_last_count = min(count - on_shared_count - (opened_count - 1) * per_gpu, per_gpu)
            free, part = free - opened_count, max(part, WHOLE_PERCENT - on_last_count * percent)
    return free, part
