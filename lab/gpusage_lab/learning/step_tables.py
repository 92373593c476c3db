"""The tables of the target ``step_time``: ours on what was left out, and the baselines beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from gpusage.predictors.timing import timing_with
from gpusage_lab.learning.scores import Score, score
from gpusage_lab.learning.step_baselines import ratio_forest, throughput_forest
from gpusage_lab.learning.step_fit import initial
from gpusage_lab.learning.step_rows import StepRow
from gpusage_lab.learning.step_samples import Measurements, family_folds
from gpusage_lab.learning.targets import Cell, Points, ScoreTable

Array = npt.NDArray[Any]
NEIGHBOURS = (("rtx-3090", "rtx-4090"), ("rtx-4090", "rtx-5090"), ("rtx-4090", "rtx-pro-6000-max-q"))
WIDE = (
    ("titan-xp", "titan-rtx"),
    ("titan-xp", "rtx-2080-ti"),
    ("titan-xp", "a100-sxm4-40gb"),
    ("titan-rtx", "a100-sxm4-40gb"),
    ("rtx-2080-ti", "a100-sxm4-40gb"),
)


def tables(found: Measurements, unseen_family: Array, unseen_gpu: Array, factors: Array) -> list[ScoreTable]:
    """Return all tables; the arrays are those of `step_time.held_out_families`, `held_out_gpus` and `factors`."""
    plain = _plain(found)
    return [
        _absolute(found, unseen_family, factors[:, 0], plain),
        _gpus(found, unseen_gpu, factors[:, 1], plain),
        _speedups(found, unseen_family, NEIGHBOURS, "timm infer", "Neighbour generations: speed-up, unseen family"),
        _speedups(found, unseen_family, WIDE, "torchvision", "Wide generations: speed-up, unseen family"),
    ]


def _absolute(found: Measurements, unseen: Array, factor: Array, plain: Array) -> ScoreTable:
    measured = found.measured_s
    forest = throughput_forest(found, family_folds(found))
    rows: list[tuple[Cell, ...]] = []
    points = []
    for source in sorted({row.source for row in found.rows}):
        kept = np.array([row.source == source for row in found.rows])
        ours = _score(measured, unseen[:, 0], factor, kept)
        rows.append(
            (
                source,
                ours.row_count,
                100 * ours.mape,
                100 * ours.median,
                100 * (ours.coverage or 0.0),
                ours.width,
                100 * score(measured[kept], unseen[kept, 1]).mape,
                100 * score(measured[kept], plain[kept]).mape,
                100 * score(measured[kept], forest[kept]).mape,
            )
        )
        points.append(_points(f"{source}, unseen family", found, kept, unseen[:, 0], factor))
    return ScoreTable(
        title="Step time of an unseen family, MAPE %",
        columns=(
            *("rows of", "n", "ours", "ours, median", "coverage %", "high/low"),
            *("ours, host known", "constant roofline", "random forest"),
        ),
        rows=tuple(rows),
        notes=(
            "A model of NeuSight is a family of its own. Host known: launches as fast as elsewhere in the campaign.",
            "Constant roofline: one efficiency a class, none fitted. Random forest: sums over the graph, GPU figures.",
            f"Left out: {found.left_out}.",
        ),
        points=tuple(points),
    )


def _gpus(found: Measurements, unseen: Array, factor: Array, plain: Array) -> ScoreTable:
    measured = found.measured_s
    rows: list[tuple[Cell, ...]] = []
    left_out = ~np.isnan(unseen[:, 0])
    for source in sorted({row.source for row in found.rows}):
        for gpu in [*sorted({row.gpu.name for row in found.rows if row.source == source}), "all"]:
            kept = left_out & np.array([row.source == source and gpu in (row.gpu.name, "all") for row in found.rows])
            if kept.any():
                ours = _score(measured, unseen[:, 0], factor, kept)
                figures = (100 * ours.mape, 100 * ours.bias, 100 * (ours.coverage or 0.0), ours.width)
                baseline = score(measured[kept], plain[kept])
                rows.append((f"{source}: {gpu}", ours.row_count, *figures, 100 * baseline.mape))
    return ScoreTable(
        title="Step time on an unseen GPU, MAPE %",
        columns=("rows of", "n", "ours", "bias %", "coverage %", "high/low", "constant roofline"),
        rows=tuple(rows),
        notes=("No row and no operator of the GPU was learned; its model families may have been, on other GPUs.",),
    )


def _score(measured: Array, predicted: Array, factor: Array, kept: Array) -> Score:
    point = predicted[kept]
    return score(measured[kept], point, point / factor[kept], point * factor[kept])


def _plain(found: Measurements) -> Array:
    """Return the seconds at one efficiency a class, of GPUs that no power limit holds back."""
    efficiency = initial()
    gpus = {sample.gpu.name: replace(sample.gpu, power_limit_w=inf) for sample in found.samples}
    return np.array(
        [float(timing_with(efficiency, s.kernels, [gpus[s.gpu.name]], s.precision).step_s[0]) for s in found.samples]
    )


def _speedups(
    found: Measurements, unseen: Array, pairs: Sequence[tuple[str, str]], source: str, title: str
) -> ScoreTable:
    rows: list[tuple[Cell, ...]] = []
    for pair in pairs:
        for label, matched in _matched(found.rows, pair, source):
            slow, fast = matched[:, 0], matched[:, 1]
            samples = np.array([row.workload.batch_size for row in found.rows], dtype=float)

            def gain(step_s: Array, slow: Array = slow, fast: Array = fast, samples: Array = samples) -> Array:
                return (step_s[slow] / samples[slow]) / (step_s[fast] / samples[fast])

            rows.append(_speedup(f"{pair[0]} -> {pair[1]}{label}", found, matched, unseen, gain))
    if rows:
        means = np.array([row[2:] for row in rows], dtype=float).mean(axis=0).tolist()
        rows.append(("mean", None, *means))
    return ScoreTable(
        title=title,
        columns=("pair", "n", "ours", "ours, calibrated", "constant", "random forest"),
        rows=tuple(rows),
        notes=(
            "MAPE % of the ratio of samples per second.",
            "All but ours learn from the other families' ratios of the same pair of GPUs.",
        ),
    )


def _speedup(
    label: str, found: Measurements, matched: Array, unseen: Array, gain: Callable[[Array], Array]
) -> tuple[Cell, ...]:
    measured, ours = gain(found.measured_s), gain(unseen[:, 0])
    hosted = gain(unseen[:, 1])
    groups = [found.rows[index].family for index in matched[:, 0]]
    forest, constant, offset = ratio_forest(found, matched, measured, hosted, groups)
    figures = (ours, hosted * offset, constant, forest)
    return (label, len(measured), *(100 * score(measured, item).mape for item in figures))


def _matched(rows: Sequence[StepRow], pair: tuple[str, str], source: str) -> Iterator[tuple[str, Array]]:
    """Yield pairs of rows of one model and workload on the two GPUs, each precision and mode of *source* apart."""
    by_cell: dict[str, dict[object, dict[str, int]]] = {}
    for index, row in enumerate(rows):
        if row.source.startswith(source) and row.gpu.name in pair:
            work = row.workload
            cell = "" if row.source == source else f", {work.mode} {work.precision}"
            by_cell.setdefault(cell, {}).setdefault((row.key, row.release), {})[row.gpu.name] = index
    for cell, models in sorted(by_cell.items()):
        both = [[found[name] for name in pair] for found in models.values() if len(found) == len(pair)]
        if both:
            yield cell, np.array(both)


def _points(title: str, found: Measurements, kept: Array, predicted: Array, factor: Array) -> Points:
    indices = np.flatnonzero(kept)
    names: Mapping[int, str] = {int(i): f"{found.rows[i].key} on {found.rows[i].gpu.name}" for i in indices}
    return Points(
        title=title,
        unit="s",
        measured=found.measured_s[indices].tolist(),
        predicted=predicted[indices].tolist(),
        low=(predicted / factor)[indices].tolist(),
        high=(predicted * factor)[indices].tolist(),
        labels=[names[int(i)] for i in indices],
    )
