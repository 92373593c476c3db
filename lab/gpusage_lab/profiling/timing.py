"""When each step of a workload ended, on the GPU's own clock where there is one; runs in the worker alone.

All workers of a measurement count the same window of the machine's monotonic clock, and run before it begins and after
it ends: what is counted is what the others disturb.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpusage.graphs.torch.libraries import import_library
from gpusage_lab.profiling.steps import Step

IN_FLIGHT = 3
"""Steps that the host may be ahead of the GPU."""
TAIL_S = 0.15
"""For how long a worker goes on after the window: the others may end a little later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The seconds that count, by `time.monotonic`."""

    start: float
    end: float


def wait_for_device(device: str) -> None:
    """Wait until the device has finished all work in its queue."""
    if device.startswith("cuda"):
        import_library("torch").cuda.synchronize()


def step_ends(step: Step, device: str, window: Window, stall_s: float = 0.0) -> list[float]:
    """Run steps until the window has passed; return when each ended, by `time.monotonic`.

    Args:
        step: Runs one.
        device: That it runs on.
        window: Until when.
        stall_s: Idle time before each step.
    """

    def stalled() -> None:
        wait_for_device(device)
        time.sleep(stall_s)
        step()

    run = _ends_on_gpu if device.startswith("cuda") else _ends_on_cpu
    return run(stalled if stall_s else step, window)


def _ends_on_cpu(step: Step, window: Window) -> list[float]:
    ends = [time.monotonic()]
    while _needs_another_step(ends, window):
        step()
        ends.append(time.monotonic())
    return ends[1:]


def _ends_on_gpu(step: Step, window: Window) -> list[float]:
    torch = import_library("torch")
    torch.cuda.synchronize()
    origin = torch.cuda.Event(enable_timing=True)
    origin.record()
    origin.synchronize()
    began = time.monotonic()
    events: list[Any] = []
    ends = [began]
    while _needs_another_step(ends, window):
        step()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) >= IN_FLIGHT:
            events[-IN_FLIGHT].synchronize()
            ends.append(time.monotonic())
    torch.cuda.synchronize()
    return [began + origin.elapsed_time(event) / 1e3 for event in events]


def _needs_another_step(ends: Sequence[float], window: Window) -> bool:
    """Return whether to run another step: a step longer than the window is still seen once, from end to end."""
    now = time.monotonic()
    whole = sum(end > window.start for end in ends[1:])
    return now < window.end + TAIL_S or whole <= 1


def summary(ends: Sequence[float], window: Window, batch_size: int) -> dict[str, Any]:
    """Return what the ends of steps say: the rate in the window, and how long a step takes."""
    counted = [end for end in ends if window.start <= end <= window.end]
    if len(counted) <= 1:
        counted = [end for end in ends if end >= window.start][:2]
    times = [after - before for before, after in pairwise(counted)]
    if not times:
        return {"steps": len(counted)}
    rate = len(times) / (counted[-1] - counted[0])
    return {
        "steps": len(times),
        "step_time_s": statistics.median(times),
        "step_time_p10_s": quantile(times, 0.1),
        "step_time_p90_s": quantile(times, 0.9),
        "steps_per_s": rate,
        "samples_per_s": rate * batch_size,
    }


def quantile(values: Sequence[float], level: float) -> float:
    """Return the value below which the part *level* of *values* lies."""
    ordered = sorted(values)
    place = level * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def median_time_s(run: Callable[[], Any], device: str, *, at_least: int, for_s: float) -> float:
    """Return the median time of *run*, each waited for; at least so many, and for so long."""
    times: list[float] = []
    began = time.monotonic()
    while len(times) < at_least or time.monotonic() - began < for_s:
        before = time.monotonic()
        run()
        wait_for_device(device)
        times.append(time.monotonic() - before)
    return statistics.median(times)
