"""Where and when the first job that waits will start, by time limits, and what the jobs behind it must leave alone.

EASY backfill: a job behind the first may start if the first one does not start later for it. It ends before that, or
it stands on what the first one can spare. On nodes, that is counted for each node: a job of at most a node's GPUs
needs one node that has them, a larger one whole nodes and one more.

Source:
    Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from gpusage_planning.simulator.contract import FloatArray
from gpusage_planning.simulator.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What is kept for a job.

    Attributes:
        until_s: When it will start, by time limits; it may be the present.
        gpu_type: Where; ``None`` where it could start on several types, so that no single job can delay it.
        gpus: GPUs on which no job may be then, by number: those that will have room last, of those that do by then.
    """

    until_s: float
    gpu_type: int | None = None
    gpus: Sequence[int] = ()


def reserve(room_at_s: FloatArray, fleet: Fleet, types: Sequence[int], count: int, now_s: float) -> Reservation:
    """Return what is kept for a job on *count* GPUs of one of *types*, which has no room at *now_s*.

    Args:
        room_at_s: When each GPU of the fleet is expected to have room for it.
        fleet: One of *types* has so many GPUs.
        types: Of GPUs.
        count: At least 1.
        now_s: What should have ended before counts as if it ended now.
    """
    starts_s = {one: start_s(room_at_s, fleet, one, count) for one in types if fleet.types[one].gpu_count >= count}
    until_s = max(min(starts_s.values()), now_s)
    in_time = [one for one, at_s in starts_s.items() if at_s <= until_s]
    if len(in_time) > 1:
        return Reservation(until_s=until_s)

    by_node = _by_node(room_at_s, fleet, in_time[0])
    per_node = by_node.shape[1]
    whole, rest = divmod(count, per_node)
    counts = (by_node <= until_s).sum(axis=1)
    needed = np.zeros(len(counts), dtype=int)
    # A node can be spared where there is one more of its kind than the job needs.
    if rest and (counts >= rest).sum() == whole + 1:
        needed[counts >= rest] = rest
    if (counts == per_node).sum() == whole:
        needed[counts == per_node] = per_node

    gpus: list[int] = []
    for node in np.flatnonzero(needed).tolist():
        there = np.flatnonzero(by_node[node] <= until_s)
        last = there[np.argsort(-by_node[node][there], kind="stable")[: needed[node]]]
        gpus += (fleet.starts[in_time[0]] + node * per_node + last).tolist()
    return Reservation(until_s=until_s, gpu_type=in_time[0], gpus=gpus)


def start_s(room_at_s: FloatArray, fleet: Fleet, gpu_type: int, count: int) -> float:
    """Return when a job on *count* GPUs of a type, which has so many, could start."""
    by_node = _by_node(room_at_s, fleet, gpu_type)
    whole, rest = divmod(count, by_node.shape[1])
    at_s = -inf
    if whole:
        at_s = float(np.partition(by_node.max(axis=1), whole - 1)[whole - 1])
    if rest:
        one_more = np.partition(by_node, rest - 1, axis=1)[:, rest - 1]
        at_s = max(at_s, float(np.partition(one_more, whole)[whole]))
    return at_s


def _by_node(room_at_s: FloatArray, fleet: Fleet, gpu_type: int) -> FloatArray:
    start, one = fleet.starts[gpu_type], fleet.types[gpu_type]
    # Where jobs are spread, any GPUs do, as on one large node.
    per_node = one.gpu_count if fleet.spreads_jobs else one.node_gpu_count
    return room_at_s[start : start + one.gpu_count].reshape(-1, per_node)
