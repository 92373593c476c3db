"""What jobs on one GPU take of it together, and whether one of them becomes slower than was accepted.

The price of a share covers average and bad partners whose threads are limited to their shares. What it does not cover
is computed here from the jobs themselves. The needs for each resource of the GPU add up; where the sum is above 1, all
steps take that many times as long. And beside training, a request waits for kernels that no percentage divides, so a
promised latency has to hold there with a step of 1 / ``latency_margin`` times the length.

Invariants:

1. Without neighbours there is no trouble.
2. One more neighbour, or one with a larger need, never makes trouble go away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from gpusage.policies.latency import latency_s
from gpusage.policies.shares.price import limits
from gpusage_hooks.types import Interval, Neighbour, Rules
from gpusage_hooks.units import WHOLE_PERCENT

BROKEN_PROMISE = "a promised latency might not hold"
TOO_BUSY = "a GPU might be too busy for all of its jobs"
_End = Callable[[Interval], float]
_Need = Callable[[Neighbour, _End], float]


def trouble(newcomer: Neighbour, there: Iterable[Neighbour], rules: Rules) -> str:
    """Return what might go wrong if *newcomer* got a share of a GPU of a node, one clause; empty where nothing.

    Args:
        newcomer: The job in question.
        there: The jobs on that node's GPUs; those count that leave room for *newcomer*.
        rules: The site's.
    """
    partners = [each for each in there if each.share_percent + newcomer.share_percent <= WHOLE_PERCENT]
    if not partners:
        return ""
    worst = _stretch(newcomer, partners, rules, lambda interval: interval.high)
    company = [(newcomer, partners), *((each, [newcomer]) for each in partners)]
    if any(_breaks(job, others, worst, rules) for job, others in company):
        return BROKEN_PROMISE
    expected = _stretch(newcomer, partners, rules, lambda interval: interval.value) if worst > 1 else 1.0
    return TOO_BUSY if any(_is_slow(job, expected, rules) for job, _ in company) else ""


def _breaks(job: Neighbour, others: Sequence[Neighbour], stretch: float, rules: Rules) -> bool:
    """Return whether *job* could miss its promised latency beside *others*, with steps *stretch* times as long."""
    slo = job.workload.slo
    if slo is None or job.workload.mode != "infer" or not rules.slo.enabled:
        return False
    if any(each.workload.mode == "train" for each in others):
        margin = min(rules.slo.latency_margin, 1.0)
        stretch = max(stretch, 1 / margin if margin > 0 else math.inf)
    return stretch > 1 and not latency_s(job.need.step_time_s.high * stretch, job.workload) <= slo.latency_s


def _is_slow(job: Neighbour, stretch: float, rules: Rules) -> bool:
    """Return whether *job* is slower than its user or the site accepts where its steps are *stretch* times as long."""
    if stretch <= 1:
        return False
    accepted = job.workload.slowdown
    if accepted is None and rules.sharing.rule == "utilization":
        accepted = 1.0  # nothing is promised but that the GPU has the time
    within, slowdown = limits(rules.sharing, accepted), job.need.slowdown
    return not (slowdown.value * stretch <= within.expected and slowdown.high * stretch <= within.worst)


def _stretch(newcomer: Neighbour, partners: Sequence[Neighbour], rules: Rules, end: _End) -> float:
    """Return how many times as long steps take, by the resource that is shortest; at least 1.

    Which jobs of a node are on one GPU is not known, so the worst company that has room beside *newcomer* is assumed.
    """
    needs: tuple[_Need, ...] = (_threads, _bandwidth, _time)[: 3 if rules.sharing.rule == "utilization" else 2]
    room = WHOLE_PERCENT - newcomer.share_percent
    return max(1.0, *(need(newcomer, end) + _most(need, partners, end, room) for need in needs))


def _most(need: _Need, jobs: Iterable[Neighbour], end: _End, room: int) -> float:
    """Return the most that those of *jobs* need together for whose shares there is *room*.

    The last one counts in part, so that one more job never makes it less.
    """
    total = 0.0
    for density, share in sorted(
        [(need(job, end) / job.share_percent, job.share_percent) for job in jobs], reverse=True
    ):
        total += density * min(share, room)
        room -= min(share, room)
    return total


def _threads(job: Neighbour, end: _End) -> float:
    """Return the part of the GPU's SMs that *job* keeps active; its need on a share counts the share's own SMs."""
    part, active = job.thread_percent / WHOLE_PERCENT, end(job.need.sm_activity)
    return active * part if job.need.share_percent < WHOLE_PERCENT else min(active, part)


def _bandwidth(job: Neighbour, end: _End) -> float:
    return end(job.need.dram_activity)


def _time(job: Neighbour, end: _End) -> float:
    return end(job.need.gpu_utilization)
