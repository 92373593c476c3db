"""Requests that reach an inference job at random times, and how long each waits for its answer; in the worker alone."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from gpusage_lab.profiling.gate import Gate
from gpusage_lab.profiling.items import Load
from gpusage_lab.profiling.steps import Step
from gpusage_lab.profiling.timing import Window, quantile, wait_for_device

SEED = 20_261_121
LONGEST_OVERRUN = 2.0
"""In windows: a job that is given more than it can answer is stopped here, and what waits then is late."""


def arrivals(rate_per_s: float, window: Window, begin: float) -> Iterator[float]:
    """Yield when requests arrive from *begin* on: a Poisson process, the same in every run."""
    chance = random.Random(SEED)  # not for cryptography
    now = begin
    while (now := now + chance.expovariate(rate_per_s)) < window.end:
        yield now


def serve(step: Step, device: str, window: Window, load: Load, alone_s: float, gate: Gate | None) -> dict[str, Any]:
    """Answer requests one after the other; return how long those of the window waited.

    Args:
        step: Answers one request.
        device: That it runs on.
        window: Requests that arrive in it count.
        load: How many, and what is late.
        alone_s: How long an answer takes alone.
        gate: Closed while a request waits.
    """
    rate_per_s, limit_s = load.intensity / alone_s, load.limit_ratio * alone_s
    last = window.end + LONGEST_OVERRUN * (window.end - window.start)
    waited, lost = [], 0
    for arrival in arrivals(rate_per_s, window, time.monotonic()):
        if time.monotonic() > last:
            lost += arrival >= window.start
            continue
        time.sleep(max(0.0, arrival - time.monotonic()))
        with gate.closed() if gate is not None else nullcontext():
            step()
            wait_for_device(device)
        if arrival >= window.start:
            waited.append(time.monotonic() - arrival)
    report = {"request_rate_per_s": rate_per_s, "latency_limit_s": limit_s, "requests": len(waited) + lost}
    if not waited:
        return report
    return report | {
        "steps": len(waited),
        "step_time_s": alone_s,
        "latency_p50_s": quantile(waited, 0.5),
        "latency_p99_s": quantile(waited, 0.99),
        "within_limit": sum(value <= limit_s for value in waited) / (len(waited) + lost),
    }
