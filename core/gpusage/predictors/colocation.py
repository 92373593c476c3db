"""What jobs on one GPU do to each other under MPS: a rule from their activities, put right near measured jobs.

Where the sums of SM activity and of DRAM activity stay below 1 the jobs fit beside each other and slow each other a
little; above 1 they share what there is. A job cannot use more SMs than its thread percentage lets it. Jobs like those
that were measured suffer and press more or less than the rule says, as they were seen to; far from all of them the
rule stands alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations
from math import ceil, exp, log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpusage.predictors.intervals import NINETY_PERCENT
from gpusage.predictors.pretrained import load
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Colocation, Gpu, GpuNeed, Interval

FloatArray = npt.NDArray[np.float64]

INTERFERENCE = 0.25
"""Slowdown of a job for each unit of the others' DRAM activity, as much as it uses the memory itself."""
CONTENTION = 0.15
"""Slowdown of a job for each unit of the others' utilization: launches, caches and clocks are shared."""
HEADROOM = 0.10
"""As the sharing rules' default: what a thread percentage grants beyond the predicted high end."""
WORTHWHILE_SUM = 1.15
"""Two jobs one after the other reach 1; sharing must be likely to gain at least this much to be recommended."""
LEAST = 0.02
"""Of a job's throughput: nothing starves."""
PAIR = 2
KNOWN = 0.5
"""A job is known where its likeness to the measured ones, 0 to 1, is at least this."""


class Deviations(NamedTuple):
    """Of the logarithm of truth over prediction: one job's throughput, and the sum."""

    one: float
    total: float


class Learned(NamedTuple):
    """What was measured of which jobs; a row of *jobs* is scaled features as `features_of` gives them.

    Attributes:
        sensitivity: For each job, by how much it suffers more (below 0) than the rule says; as weights of likeness.
        pressure: The same of how much it makes others suffer.
        near: Distance at which likeness falls off.
        known: Where all jobs are like measured ones.
        unknown: Where one is not.
    """

    mean: FloatArray
    scale: FloatArray
    jobs: FloatArray
    sensitivity: FloatArray
    pressure: FloatArray
    near: float
    known: Deviations
    unknown: Deviations


@hookimpl(trylast=True)
def predict_colocation(needs: Sequence[GpuNeed], gpu: Gpu) -> Colocation:
    """Predict what jobs, each given by its need on *gpu*, do to each other under MPS."""
    percents = _thread_percents(needs)
    learned = _learned()
    rows = features_of(needs)
    deviations = learned.known if is_known(learned, rows) else learned.unknown
    values = [1.0] if len(needs) == 1 else throughputs(learned, rows, percents)
    total = sum(values)
    highest = float(len(needs))
    alone = len(needs) == 1
    fits = sum(need.memory_bytes.high for need in needs) <= gpu.memory_bytes
    return Colocation(
        gpu=gpu.name,
        normalised_throughput=tuple(_interval(value, 1.0, 0.0 if alone else deviations.one) for value in values),
        mps_thread_percent=percents,
        memory_cap_bytes=tuple(ceil(need.memory_bytes.high) for need in needs),
        throughput_sum=_interval(total, highest, 0.0 if alone else deviations.total),
        fits=fits,
        recommended=fits and len(needs) > 1 and total >= WORTHWHILE_SUM,
    )


def features_of(needs: Sequence[GpuNeed]) -> FloatArray:
    """Return one row a job: step, utilization, SM and memory activity, samples a second, memory."""
    return np.array(
        [
            (
                log(max(need.step_time_s.value, 1e-9)),
                need.gpu_utilization.value,
                need.sm_activity.value,
                need.dram_activity.value,
                log(max(need.throughput_samples_per_s.value, 1e-9)),
                log(max(need.memory_bytes.value, 1.0)),
            )
            for need in needs
        ]
    ).reshape(-1, 6)


def throughputs(learned: Learned, rows: FloatArray, percents: Sequence[int] | None = None) -> list[float]:
    """Return each job's throughput relative to running alone; *percents* limits the SMs that each may use."""
    likeness = likeness_of(learned, rows)
    sensitivity, pressure = likeness @ learned.sensitivity, likeness @ learned.pressure
    found = rule(rows) * np.exp(sensitivity + pressure.sum() - pressure)
    if len(rows) > PAIR:
        found = np.minimum(found, _worst_pair(rows, sensitivity, pressure))
    granted = np.ones(len(rows)) if percents is None else np.array(percents) / 100.0 / np.maximum(rows[:, 2], 1e-6)
    result: list[float] = np.clip(np.minimum(found, granted), LEAST, 1.0).tolist()
    return result


def _worst_pair(rows: FloatArray, sensitivity: FloatArray, pressure: FloatArray) -> FloatArray:
    """Return each job's least throughput beside one of the others: a third job never helps."""
    found = np.ones((len(rows), len(rows)))
    for first, second in permutations(range(len(rows)), PAIR):
        found[first, second] = rule(rows[[first, second]])[0] * np.exp(sensitivity[first] + pressure[second])
    return np.asarray(found.min(axis=1))


def rule(rows: FloatArray) -> FloatArray:
    """Return the throughputs that the activities alone say."""
    busy, sm, dram = rows[:, 1], rows[:, 2], rows[:, 3]
    slowdown = 1.0 + INTERFERENCE * dram * (dram.sum() - dram) + CONTENTION * busy * (busy.sum() - busy)
    crowding = max(1.0, float(sm.sum()), float(dram.sum()))
    return np.asarray(1.0 / crowding / slowdown)


def likeness_of(learned: Learned, rows: FloatArray) -> FloatArray:
    """Return how like each of *rows* is to each measured job, 0 to 1."""
    away = ((rows - learned.mean) / learned.scale)[:, np.newaxis] - learned.jobs
    return np.asarray(np.exp(-0.5 * (away**2).sum(axis=-1) / learned.near**2))


def is_known(learned: Learned, rows: FloatArray) -> bool:
    """Return whether every job is like a measured one."""
    return bool((likeness_of(learned, rows).max(axis=1, initial=0.0) >= KNOWN).all())


def _thread_percents(needs: Sequence[GpuNeed]) -> tuple[int, ...]:
    """Return each job's thread percentage: what it uses and some headroom, cut down together where the sum is > 100."""
    wanted = [min(100.0, 100.0 * (need.sm_activity.high + HEADROOM)) for need in needs]
    cut = min(1.0, 100.0 / sum(wanted)) if wanted else 1.0
    return tuple(max(1, int(percent * cut)) for percent in wanted)


def _interval(value: float, highest: float, deviation: float) -> Interval:
    factor = exp(NINETY_PERCENT * deviation)
    return Interval(value=value, low=value / factor, high=max(value, min(highest, value * factor)))


@lru_cache(maxsize=1)
def _learned() -> Learned:
    return read(load("colocation")["parameters"])


def read(parameters: dict[str, Any]) -> Learned:
    """Return what an artifact's *parameters* say."""
    return Learned(
        mean=np.array(parameters["mean"]),
        scale=np.array(parameters["scale"]),
        jobs=np.array(parameters["jobs"]).reshape(-1, len(parameters["mean"])),
        sensitivity=np.array(parameters["sensitivity"]),
        pressure=np.array(parameters["pressure"]),
        near=float(parameters["near"]),
        known=Deviations(*parameters["known"]),
        unknown=Deviations(*parameters["unknown"]),
    )
