"""Measured steps as columns: what the fit of the step time reads, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusage.predictors.times.kernel_times import LOAD_LATENCY_S, ideal_times
from gpusage.predictors.times.kernels import Kernels
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, Precision

Array = npt.NDArray[Any]
CLASSES = len(OperatorClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured step.

    Attributes:
        campaign: Has a host of its own: as fast as ours times a factor that is fitted with the rest.
        weight: How much it counts.
        extra_s: What the measurement adds to the step, as `StepRow.copy_s`.
        group: The same model, mode and precision on other GPUs and in other releases of the libraries: what differs
            within a group counts once more for itself, as speed-ups are what GPUs are chosen by. None is a group of
            its own.
    """

    kernels: Kernels
    gpu: Gpu
    precision: Precision
    measured_s: float
    campaign: str
    weight: float = 1.0
    extra_s: float = 0.0
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat:
    """All kernels of all samples, ordered by class; ``row`` says which sample each belongs to.

    Attributes:
        waits_us: Of each sample, what its kernels wait for memory: see `Kernels.dependent_loads`.
    """

    operator_class: Array
    starts: Array
    features: Array
    compute_us: Array
    traffic_us: Array
    counts: Array
    launches: Array
    waits_us: Array
    row: Array
    host_counts: Array
    log_measured_us: Array
    weight: Array
    gpu: Array
    gpu_names: tuple[str, ...]
    campaign: Array
    campaigns: tuple[str, ...]
    extra_us: Array
    group: Array


def flattened(samples: Sequence[Sample]) -> Flat:
    """Return the samples' kernels as columns, those without work left out."""
    parts = [_columns(index, sample) for index, sample in enumerate(samples)]
    classes, features, compute, traffic, counts, launches, row = (np.concatenate(c) for c in zip(*parts, strict=True))
    order = np.argsort(classes, kind="stable")
    gpu_names = tuple(sorted({sample.gpu.name for sample in samples}))
    campaigns = tuple(sorted({sample.campaign for sample in samples}))
    return Flat(
        operator_class=classes[order],
        starts=np.searchsorted(classes[order], np.arange(CLASSES + 1)),
        features=features[order].astype(np.float32),
        compute_us=compute[order].astype(np.float32),
        traffic_us=traffic[order].astype(np.float32),
        counts=counts[order].astype(np.float32),
        launches=launches[order].astype(np.float32),
        waits_us=np.array(
            [LOAD_LATENCY_S * 1e6 * float(each.kernels.counts @ each.kernels.dependent_loads) for each in samples]
        ),
        row=row[order],
        host_counts=np.array([sample.kernels.host_counts for sample in samples]),
        log_measured_us=np.log([sample.measured_s * 1e6 for sample in samples]),
        weight=np.array([sample.weight for sample in samples]),
        gpu=np.array([gpu_names.index(sample.gpu.name) for sample in samples]),
        gpu_names=gpu_names,
        campaign=np.array([campaigns.index(sample.campaign) for sample in samples]),
        campaigns=campaigns,
        extra_us=np.array([sample.extra_s * 1e6 for sample in samples]),
        group=_numbered([sample.group or f"alone {index}" for index, sample in enumerate(samples)]),
    )


def _columns(index: int, sample: Sample) -> tuple[Array, ...]:
    """Return class, features, ideal times, counts and launches of the kernels that work, and *index* for each."""
    kernels = sample.kernels
    ideal = ideal_times(kernels, [sample.gpu], sample.precision)
    works = (kernels.operator_class != OperatorClass.VIEW) & (kernels.counts > 0)
    works &= (kernels.traffic_bytes > 0) | (kernels.flop > 0)
    columns = (
        kernels.operator_class,
        ideal.features[:-1, :, 0].T,
        ideal.compute_s[:, 0] * 1e6,
        ideal.traffic_s[:, 0] * 1e6,
        kernels.counts,
        kernels.launches,
        np.full(len(works), index),
    )
    return tuple(column[works] for column in columns)


def _numbered(names: Sequence[str]) -> Array:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names])
