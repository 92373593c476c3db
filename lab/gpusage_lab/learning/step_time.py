"""The target ``step_time``: seconds of one step, fitted and scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.artifacts import Card, ResidualParameters, StepTimeDeviations, StepTimeParameters, pretrained
from gpusage.predictors.extrapolation import work_shares
from gpusage.predictors.times.efficiency import Efficiency
from gpusage.predictors.work.lowering import forward_flop
from gpusage_hooks.types import ModelGraph, Workload
from gpusage_lab.learning import step_tables
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.scores import score, weighted_quantile
from gpusage_lab.learning.splits import Fold
from gpusage_lab.learning.step_absolute import (
    LeftOut,
    Side,
    absolute_table,
    left_out_rows,
    precision_table,
    side,
)
from gpusage_lab.learning.step_baselines import throughput_forest
from gpusage_lab.learning.step_fit import Fitted, initial
from gpusage_lab.learning.step_flat import Array, Sample
from gpusage_lab.learning.step_ratio import COVERED, pairs_of, ratio_table, shared_shares
from gpusage_lab.learning.step_rows import neusight_note, row_counts
from gpusage_lab.learning.step_samples import Measurements, family_folds, gpu_folds, measurements, predicted, refit
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.progress import track
from gpusage_planning.zoo import load_zoo

FamilyFits = Sequence[tuple[Fold, Fitted]]
NAME = "step_time"
SHORT_SHARE = 0.25
"""From this share on a step is taken for one of short kernels."""
CHOSEN = (
    "Features and settings were chosen by the errors on unseen GPUs and families of timm, torchvision and the "
    "operators, one setting (the weight of NeuSight's models) by theirs; of some thirty variants all scores were seen."
)


def fit(data: DataFolder) -> Sequence[Artifact]:
    """Fit the efficiencies on all rows, and the intervals on families and GPUs that were left out."""
    measured, fits = fitted_by_family(data)
    unseen_family = held_out_families(measured, fits)
    unseen_gpu = held_out_gpus(measured)
    fitted = refit(measured, np.arange(len(measured.rows)))
    known = deviations(measured, unseen_family, unseen_gpu)
    shared = shared_shares(pairs_of(measured, unseen_family, unseen_gpu, known))
    before = pretrained().step_time.deviations  # whose kinds `published.intervals` fits
    known = replace(known, of_kinds=before.of_kinds, of_settings=before.of_settings, **shared)
    efficiency = replace(fitted.efficiency, deviations=known)
    return [Artifact(name=NAME, card=_card(measured, unseen_family, unseen_gpu), parameters=_parameters(efficiency))]


def evaluate(data: DataFolder) -> Sequence[ScoreTable]:
    """Score on families and on GPUs that were left out, with the baselines beside."""
    measured, fits = fitted_by_family(data)
    unseen_family, unseen_gpu = held_out_families(measured, fits), held_out_gpus(measured)
    pairs = pairs_of(measured, unseen_family, unseen_gpu, deviations(measured, unseen_family, unseen_gpu))
    widths = factors(measured, unseen_family, unseen_gpu)
    return [
        *_absolute(data, measured, fits, unseen_family, widths[:, 0]),
        *step_tables.tables(measured, unseen_family, unseen_gpu, widths[:, 1]),
        ratio_table(measured, pairs),
    ]


def _absolute(
    data: DataFolder, measured: Measurements, fits: FamilyFits, unseen_family: Array, factor: Array
) -> list[ScoreTable]:
    """Return the tables of seconds."""
    zoo = load_zoo()
    forest_s = throughput_forest(measured, family_folds(measured))
    used = side(measured.rows, measured.samples, unseen_family, factor, forest_s)
    left_out = _left_out_side(left_out_rows(data, zoo), measured, fits, unseen_family)
    return [
        absolute_table(used, left_out, row_counts(data, zoo), measured.left_out),
        precision_table(used, neusight_note(data, zoo)),
    ]


def _left_out_side(others: LeftOut, measured: Measurements, fits: FamilyFits, unseen_family: Array) -> Side:
    """Return what the fit that has not seen a row's family says of it, the first where none has seen it."""
    fold_of = {measured.rows[index].family: number for number, (fold, _) in enumerate(fits) for index in fold.test}
    numbers = np.array([fold_of.get(row.family, 0) for row in others.rows], dtype=int)
    ours, factor = np.zeros((len(numbers), 3)), np.ones(len(numbers))
    no_gpu = np.full_like(unseen_family, np.nan)
    for number, (fold, fitted) in enumerate(fits):
        chosen = np.flatnonzero(numbers == number)
        ours[chosen, 0], ours[chosen, 2] = predicted(fitted, [others.samples[index] for index in chosen])
        known = deviations(measured, unseen_family, no_gpu, fold.train)
        factor[chosen] = np.exp(np.hypot(known.known, known.short * ours[chosen, 2]))
    ours[:, 1] = np.nan
    return side(others.rows, others.samples, ours, factor, np.full(len(numbers), np.nan))


@lru_cache(maxsize=1)
def fitted_by_family(data: DataFolder) -> tuple[Measurements, FamilyFits]:
    """Return the rows, and each fold by family with the fit that has not seen it; two targets want them, made once."""
    measured = measurements(data)
    folds = track(family_folds(measured), description="step time, families")
    return measured, [(fold, refit(measured, fold.train)) for fold in folds]


def held_out_families(measured: Measurements, fits: FamilyFits) -> Array:
    """Return for each row the seconds as shipped, with the campaign's host, and `Timing.short_share`; family unseen."""
    result = np.zeros((len(measured.rows), 3))
    for fold, fitted in fits:
        _fill(result, fitted, measured, fold.test)
    return result


def held_out_gpus(measured: Measurements) -> Array:
    """Return the same where the row's GPU was unseen; NaN where the GPU was never left out."""
    result = np.full((len(measured.rows), 3), np.nan)
    for group, fold in track(gpu_folds(measured), description="step time, GPUs"):
        _fill(result, refit(measured, fold.train, without=group), measured, fold.test)
    return result


def _fill(result: Array, fitted: Fitted, measured: Measurements, test: Array) -> None:
    samples = [measured.samples[index] for index in test]
    result[test, 0], result[test, 2] = predicted(fitted, samples)
    result[test, 1], _ = predicted(fitted, samples, with_campaign=True)


def factors(measured: Measurements, unseen_family: Array, unseen_gpu: Array) -> Array:
    """Return for each row the factor from the point to either end of the interval, from the errors of the other folds.

    Its columns are those where the row's family was unseen, and where its GPU was.
    """
    result = np.ones((len(measured.rows), 2))
    folds = [(0, fold) for fold in family_folds(measured)] + [(1, fold) for _, fold in gpu_folds(measured)]
    for column, fold in folds:
        known = deviations(measured, unseen_family, unseen_gpu, fold.train)
        share = (unseen_gpu if column else unseen_family)[fold.test, 2]
        squares = known.known**2 + (known.unseen_gpu * column) ** 2 + (known.short * share) ** 2
        result[fold.test, column] = np.exp(np.sqrt(squares))
    return result


def deviations(
    measured: Measurements, unseen_family: Array, unseen_gpu: Array, rows: Array | None = None
) -> StepTimeDeviations:
    """Return how far 90 % of the truths lie from the point, on the logarithmic scale.

    Where there are no rows to fit it on, it is what the fit begins with.

    Args:
        measured: The measurements.
        unseen_family: As `held_out_families` gives it.
        unseen_gpu: As `held_out_gpus` gives it.
        rows: Indices of the rows to look at; all where it is left out.
    """
    rows = np.arange(len(measured.rows)) if rows is None else rows
    measured_s, weight = measured.measured_s[rows], _campaign_weights([measured.rows[index].campaign for index in rows])
    miss, share = np.abs(np.log(unseen_family[rows, 0] / measured_s)), unseen_family[rows, 2]
    short, result = share > SHORT_SHARE, initial().deviations
    if not short.all():
        result = replace(result, known=weighted_quantile(miss[~short], weight[~short], COVERED))
    if short.any():
        beyond = np.sqrt(np.maximum(miss[short] ** 2 - result.known**2, 0.0)) / share[short]
        result = replace(result, short=weighted_quantile(beyond, weight[short], COVERED))
    far = ~np.isnan(unseen_gpu[rows, 0]) & ~(unseen_gpu[rows, 2] > SHORT_SHARE)
    if far.any():
        miss_far = np.abs(np.log(unseen_gpu[rows, 0][far] / measured_s[far]))
        unseen = weighted_quantile(miss_far, weight[far], COVERED)
        result = replace(result, unseen_gpu=max(unseen**2 - result.known**2, 0.0) ** 0.5)
    return result


def _campaign_weights(campaigns: Sequence[str]) -> Array:
    """Return each row's share of its campaign, as in a random campaign's random row: a user's own is one more."""
    sizes = Counter(campaigns)
    return np.array([1.0 / sizes[name] for name in campaigns])


def _parameters(efficiency: Efficiency) -> StepTimeParameters:
    residual = efficiency.residual
    return StepTimeParameters(
        first=efficiency.first.tolist(),
        first_bias=efficiency.first_bias.tolist(),
        second=efficiency.second.tolist(),
        second_bias=efficiency.second_bias.tolist(),
        latency_s=efficiency.latency_s,
        host_s=efficiency.host_s.tolist(),
        gpu_log_factors=dict(efficiency.gpu_log_factors),
        deviations=efficiency.deviations,
        residual=ResidualParameters(
            means=residual.means.tolist(),
            scales=residual.scales.tolist(),
            anchors=residual.anchors.tolist(),
            by_gpu={name: coefficients.tolist() for name, coefficients in residual.by_gpu.items()},
            least_count=residual.least_count,
        ),
    )


def _card(measured: Measurements, unseen_family: Array, unseen_gpu: Array) -> Card:
    counts: dict[str, int] = {}
    for row in measured.rows:
        counts[row.source] = counts.get(row.source, 0) + 1
    measured_s = measured.measured_s
    errors = {}
    for source in sorted(counts):
        rows = np.array([row.source == source for row in measured.rows])
        errors[f"MAPE, unseen family, {source}"] = score(measured_s[rows], unseen_family[rows, 0]).mape
        rows &= ~np.isnan(unseen_gpu[:, 0])
        if rows.any():
            errors[f"MAPE, unseen GPU, {source}"] = score(measured_s[rows], unseen_gpu[rows, 0]).mape
    gpu_count = _gpu_count(measured.operators)
    return Card(
        purpose="Efficiency of each class of operator under the roofline, launches, and the 90 % intervals' widths.",
        fitted_on=(
            *(f"{source}: {count} rows" for source, count in sorted(counts.items())),
            f"NeuSight's operators: {len(measured.operators)} of {gpu_count} GPUs, long ones once more with more rows",
            f"DeepBench's products: {len(measured.products)} rows of {_gpu_count(measured.products)} GPUs",
            f"left out: {measured.left_out}",
        ),
        licences=(
            "timm: Apache-2.0",
            "pytorch-gpu-benchmark: MIT",
            "NeuSight: MIT",
            "DeepBench: Apache-2.0",
            "gpusage profile: our own",
        ),
        ranges=ranges(measured),
        known=training_coverage(measured),
        errors=errors,
        notes=("Remade by: gpusage train --data FOLDER --target step_time --target intervals", CHOSEN),
    )


def _gpu_count(samples: Sequence[Sample]) -> int:
    return len({sample.gpu.name for sample in samples})


def ranges(measurements: Measurements) -> dict[str, tuple[float, float]]:
    """Return the least and the greatest of each quantity; FLOP are of a step's forward pass."""
    graphs = [_graph(row.key) for row in measurements.rows]
    batches = [row.workload.batch_size for row in measurements.rows]
    return {
        "batch_size": _span(batches),
        "flop": _span(batch * forward_flop(graph) for batch, graph in zip(batches, graphs, strict=True)),
        "launch_year": _span(
            sample.gpu.launch_year
            for sample in (*measurements.samples, *measurements.operators, *measurements.products)
        ),
        "parameter_count": _span(graph.parameter_count for graph in graphs),
        "step_s": _span(row.measured_s for row in measurements.rows),
    }


def training_coverage(measurements: Measurements) -> dict[str, tuple[str, ...]]:
    """Return the operators that do the work in some row's model, and the precisions."""
    works = {
        row.key: work_shares(WorkloadAnalysis(_graph(row.key), Workload(mode="infer")).lowering)
        for row in measurements.rows
    }
    return {
        "operator": tuple(sorted({op_type for shares in works.values() for op_type in shares})),
        "precision": tuple(sorted({row.workload.precision for row in measurements.rows})),
    }


def _graph(key: str) -> ModelGraph:
    return load_zoo().graph(key)


def _span(values: Iterable[float]) -> tuple[float, float]:
    collected = [float(value) for value in values]
    return min(collected), max(collected)
