"""What the step time is fitted on: whole steps and single operators, weighted so that no source drowns the others."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.times.step_time import Timing, timing_with
from gpusage_lab.learning.splits import Fold, by_group
from gpusage_lab.learning.step_fit import Fitted, fit
from gpusage_lab.learning.step_flat import Array, Sample
from gpusage_lab.learning.step_operators import operator_samples, product_samples
from gpusage_lab.learning.step_residual import ResidualRows, fit_residual
from gpusage_lab.learning.step_rows import StepRow, families, graph_as_measured, left_out, step_rows
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.progress import track
from gpusage_planning.zoo import Zoo, load_zoo

SOURCE_WEIGHTS = {
    "timm infer": 1.0,
    "timm train": 0.5,
    "torchvision infer": 0.2,
    "torchvision train": 0.2,
    "neusight": 1.0,
    "operators": 1.04,
    "products": 0.2,
}
PROFILE_WEIGHT = 0.5
"""Of each campaign and mode of gpusage profile."""
FAMILY_FOLDS = 4
GPU_FOLDS: tuple[tuple[str, ...], ...] = (
    ("a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm4-40gb", "rtx-4090"),
    ("p100-pcie-16gb", "rtx-5090", "rtx-pro-6000-max-q"),
    ("t4", "rtx-3090", "titan-xp", "gtx-1080-ti"),
    ("v100-pcie-32gb", "v100-sxm2-16gb", "rtx-2080-ti", "titan-rtx"),
    ("p4",),
    ("h100-sxm5-80gb", "h100-pcie-80gb"),
)
"""GPUs that are left out together: all of one chip, and of different sources. Each other GPU is left out alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Rows, the samples made of them, and what was measured alone.

    Attributes:
        operators: NeuSight's.
        products: DeepBench's.
        fitted: Which rows may be training rows: of each of timm's inference models those of two campaigns, which halves
            the time.
        left_out: What was not looked at and why, for people.
    """

    rows: list[StepRow]
    samples: list[Sample]
    operators: list[Sample]
    products: list[Sample]
    fitted: Array
    left_out: str = ""

    @property
    def measured_s(self) -> Array:
        """Each row's measured step."""
        return np.array([row.measured_s for row in self.rows])


def measurements(data: DataFolder, zoo: Zoo | None = None) -> Measurements:
    """Return everything that the step time is fitted on and scored with."""
    zoo = zoo or load_zoo()
    rows = step_rows(data, zoo)
    samples = [sample_of(row, zoo) for row in track(rows, description="step time, rows")]
    return Measurements(
        rows=rows,
        samples=samples,
        operators=_sharing("operators", operator_samples(data)),
        products=_sharing("products", product_samples(data)),
        fitted=_fitted(rows),
        left_out=left_out(data, zoo),
    )


def _sharing(source: str, samples: Sequence[Sample]) -> list[Sample]:
    """Return *samples*, each with the same part of the weight of *source*."""
    return [replace(sample, weight=SOURCE_WEIGHTS[source] / len(samples)) for sample in samples]


def sample_of(row: StepRow, zoo: Zoo) -> Sample:
    """Return *row* with the kernels of its step."""
    return Sample(
        kernels=WorkloadAnalysis(graph_as_measured(row, zoo), row.workload).kernels,
        gpu=row.gpu,
        precision=row.workload.precision,
        measured_s=row.measured_s,
        campaign=row.campaign,
        extra_s=row.copy_s,
        group=f"{row.key.replace('timm-fused:', 'timm:')} {row.workload.mode} {row.workload.precision}",
    )


def _fitted(rows: Sequence[StepRow]) -> Array:
    campaigns = sorted({row.campaign for row in rows if row.source == "timm infer"})

    def is_training_row(row: StepRow) -> bool:
        if row.source != "timm infer":
            return True
        turn = int(hashlib.sha256(row.key.encode()).hexdigest()[:8], 16)
        return (campaigns.index(row.campaign) - turn) % len(campaigns) in (0, len(campaigns) // 2)

    return np.array([is_training_row(row) for row in rows], dtype=bool)


def weighted(measured: Measurements, indices: Array) -> list[Sample]:
    """Return the samples of the training rows *indices*; a family counts by the root of its size."""
    fitted = [int(index) for index in indices if measured.fitted[index]]
    sizes = Counter((measured.rows[index].source, measured.rows[index].family) for index in fitted)
    totals: dict[str, float] = {}
    for (source, _), size in sizes.items():
        totals[source] = totals.get(source, 0.0) + size**0.5
    result = []
    for index in fitted:
        row = measured.rows[index]
        size = sizes[row.source, row.family]
        weight = SOURCE_WEIGHTS.get(row.source, PROFILE_WEIGHT) / (totals[row.source] * size**0.5)
        result.append(replace(measured.samples[index], weight=weight))
    return result


def refit(measured: Measurements, indices: Array, *, without: tuple[str, ...] = ()) -> Fitted:
    """Return the fit to the rows *indices*, with no row, operator or product of the GPUs *without*."""
    samples = [*weighted(measured, indices), *measured.operators, *measured.products]
    fitted = fit([sample for sample in samples if sample.gpu.name not in without])
    chosen = np.array([index for index in indices if measured.rows[index].gpu.name not in without])
    residual = fit_residual(_residual_rows(measured, chosen, fitted))
    # a GPU of which products alone were measured has no part of its own, and stays one that was not measured
    measured_gpus = {sample.gpu.name for sample in (*measured.samples, *measured.operators)}
    factors = {name: factor for name, factor in fitted.efficiency.gpu_log_factors.items() if name in measured_gpus}
    return replace(fitted, efficiency=replace(fitted.efficiency, residual=residual, gpu_log_factors=factors))


def _residual_rows(measured: Measurements, indices: Array, fitted: Fitted) -> ResidualRows:
    """Return what the rows *indices* took beyond the roofline, each with its campaign's host."""
    samples = [measured.samples[index] for index in indices]
    timings = [_timing(fitted, sample, with_campaign=True) for sample in samples]
    measured_s = np.array([max(sample.measured_s - sample.extra_s, sample.extra_s) for sample in samples])
    return ResidualRows(
        features=np.concatenate([timing.features for timing in timings]),
        misses=np.log(measured_s / [float(timing.step_s[0]) for timing in timings]),
        gpus=[sample.gpu.name for sample in samples],
        models=[f"{measured.samples[index].group} {measured.rows[index].release}" for index in indices],
        families=[f"{measured.rows[index].source} {measured.rows[index].family}" for index in indices],
    )


def _timing(fitted: Fitted, sample: Sample, *, with_campaign: bool) -> Timing:
    efficiency = fitted.efficiency
    factor = _host_log_factor(fitted, sample.campaign) if with_campaign else 0.0
    if factor:
        efficiency = replace(efficiency, host_s=efficiency.host_s * np.exp(factor))
    return timing_with(efficiency, sample.kernels, [sample.gpu], sample.precision)


def _host_log_factor(fitted: Fitted, campaign: str) -> float:
    """Return the logarithm of how slow the campaign's host is; of an unseen one, the mean of those of its source."""
    known = fitted.campaign_log_factors
    source = campaign.partition(" ")[0]
    others = [factor for name, factor in known.items() if name.partition(" ")[0] == source]
    return known.get(campaign, sum(others) / max(len(others), 1))


def predicted(fitted: Fitted, samples: Sequence[Sample], *, with_campaign: bool = False) -> tuple[Array, Array]:
    """Return each sample's seconds and share of short kernels; with its campaign's host or, as shipped, with ours.

    The host of a campaign that the fit has not seen is as fast as those of its source's other campaigns.
    """
    steps, shares = [], []
    for sample in samples:
        timing = _timing(fitted, sample, with_campaign=with_campaign)
        steps.append(float(timing.step_s[0]) + sample.extra_s)
        shares.append(float(timing.short_share[0]))
    return np.array(steps), np.array(shares)


def family_folds(measured: Measurements) -> list[Fold]:
    """Return the folds by family; a language model of NeuSight is a family of its own."""
    return by_group(families(measured.rows), FAMILY_FOLDS, "family")


def gpu_folds(measured: Measurements) -> list[tuple[tuple[str, ...], Fold]]:
    """Return the folds by GPU."""
    names = np.array([row.gpu.name for row in measured.rows])
    others = sorted(set(names.tolist()).difference(*GPU_FOLDS))
    folds = []
    for group in (*GPU_FOLDS, *((name,) for name in others)):
        tested = np.isin(names, group)
        if not tested.any():
            continue
        name = f"unseen GPU {', '.join(group)}"
        folds.append((group, Fold(name=name, train=np.flatnonzero(~tested), test=np.flatnonzero(tested))))
    return folds
