"""How long an inference job's requests take, waiting included: what 95 of 100 of them stay below.

Invariants:

1. More requests a second, or a longer step, never make the latency shorter.
2. Where requests come faster than steps serve them, it is infinite.

Source:
    M/D/1: requests come at random, one server takes the same time for each. Until one service time the distribution of
    the wait is exact (Erlang, 1909); beyond it is the Cramer-Lundberg approximation, for example Asmussen, Applied
    Probability and Queues, chapter XIII. tests/unit/policies/test_latency.py compares it with a simulation.
"""

from __future__ import annotations

import math

from gpusage_hooks.types import Workload

REQUESTS_IN_TIME = 0.95
"""The part of the requests for which a promised latency holds: the same end as that of every predicted figure."""
_HALVINGS = 60
"""Of the interval around the decay rate: as exact as a float is."""


def latency_s(step_time_s: float, workload: Workload) -> float:
    """Return the seconds that 95 of 100 requests stay below; infinite where steps cannot keep up.

    A step serves one batch. Where the rate of requests is known, batches queue for the GPU. The time until a request's
    batch is full depends on the server's own settings, and is not counted.

    Args:
        step_time_s: Seconds of one step, at the end that counts.
        workload: Its batch size, and the rate of its promise.
    """
    rate_per_s = (workload.slo.rate_per_s if workload.slo else None) or 0.0
    utilization = rate_per_s * step_time_s / workload.batch_size
    return step_time_s * (1 + waited_services(utilization))


def waited_services(utilization: float, in_time: float = REQUESTS_IN_TIME) -> float:
    """Return how many service times a part *in_time* of the requests waits at most, where a server is busy so much."""
    if utilization >= 1:
        return math.inf
    if 1 - utilization >= in_time:
        return 0.0
    within_one = math.log(in_time / (1 - utilization)) / utilization
    return within_one if within_one <= 1 else max(_tail_services(utilization, in_time), 1.0)


def _tail_services(utilization: float, in_time: float) -> float:
    """Return the same where it is longer than one service: the tail falls as ``factor * exp(-rate * services)``."""
    rate = _decay_rate(utilization)
    below = utilization * math.exp(rate) - 1
    # Near a utilization of 1 both ends of the factor go to 0, and the factor itself to 1.
    factor = (1 - utilization) / below if below > 0 else 1.0
    return math.log(factor / (1 - in_time)) / rate if rate > 0 else math.inf


def _decay_rate(utilization: float) -> float:
    """Return the x above 0 that solves ``utilization * (exp(x) - 1) = x``; above 0 for a utilization below 1."""
    low, high = 0.0, -2 * math.log(utilization) + 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if utilization * math.expm1(middle) < middle else (low, middle)
    return high
