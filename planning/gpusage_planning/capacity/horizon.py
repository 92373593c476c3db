"""What is still to come, as the program of one event sees it: periods, and what each job takes of them.

Periods grow: the next minutes are fine, tomorrow is coarse. In all but the present, jobs may be divided, GPUs of one
name are one pool, and a node is paid for the part of it that is used; so later is a little cheaper than it will be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusage_hooks.units import HOUR_S
from gpusage_planning.capacity.state import State, Waiting

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
PARTS = np.array([1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0])
"""When later starts, as parts of the time in which all work could be done."""
ENDLESS = 8.0
"""The last period, as a multiple of that time."""
WAITING_SHARE = 0.02
"""An hour of waiting counts as this share of what the job's GPUs cost in an hour."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StartOptions:
    """Each way to start a job, a column each: which job, on which GPUs, when, and what it takes.

    Attributes:
        job: The job's place in the window.
        gpu: The GPU's number.
        gpu_count: How many of them.
        time_s: How long it runs.
        start_s: When it starts, from now on.
    """

    job: IntArray
    gpu: IntArray
    gpu_count: FloatArray
    time_s: FloatArray
    start_s: FloatArray

    def __len__(self) -> int:
        return len(self.job)

    def use_s(self, edges_s: FloatArray) -> FloatArray:
        """Return the GPU seconds of each way in each period."""
        start, end = self.start_s[:, None], (self.start_s + self.time_s)[:, None]
        return np.asarray(self.gpu_count[:, None] * overlap_s(start, end, edges_s))

    def costs(self, jobs: Sequence[Waiting], now_s: float) -> FloatArray:
        """Return the cost of lateness, and a little for waiting, so that no job waits without a reason."""
        deadline = np.array([each.job.latest_end_s for each in jobs])[self.job]
        price = np.array([each.job.late_price_per_hour for each in jobs])[self.job]
        usual = np.array([each.cheapest.cost / each.cheapest.time_s for each in jobs])[self.job]
        late_s = np.maximum(now_s + self.start_s + self.time_s - deadline, 0.0)
        return np.asarray(late_s / HOUR_S * price + WAITING_SHARE * usual * self.start_s)


def overlap_s(start_s: FloatArray, end_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Return how much of each stretch of time lies in each period between *edges_s*."""
    return np.asarray(np.maximum(np.minimum(end_s, edges_s[1:]) - np.maximum(start_s, edges_s[:-1]), 0.0))


def edges(state: State, jobs: Sequence[Waiting]) -> FloatArray:
    """Return where periods begin and end, in seconds from now."""
    work_s = sum(each.fastest.gpu_count * each.fastest.time_s for each in jobs) / state.gpu_count
    whole_s = work_s + max(each.fastest.time_s for each in jobs)
    return np.concatenate([[0.0], PARTS * whole_s, [ENDLESS * whole_s]])


def later(jobs: Sequence[Waiting], gpus: Sequence[str], starts_s: FloatArray) -> StartOptions:
    """Return each way to start later, once for each name of a GPU and number of GPUs."""
    rows = [
        (place, gpus.index(gpu), count, time_s)
        for place, each in enumerate(jobs)
        for (gpu, count), time_s in each.times_s
    ]
    job, gpu, count, time_s = (np.repeat(np.array(column), len(starts_s)) for column in zip(*rows, strict=True))
    return StartOptions(
        job=job.astype(np.int64),
        gpu=gpu.astype(np.int64),
        gpu_count=count.astype(np.float64),
        time_s=time_s.astype(np.float64),
        start_s=np.tile(starts_s, len(rows)),
    )
