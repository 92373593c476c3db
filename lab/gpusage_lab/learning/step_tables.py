"""The tables of the target ``step_time`` that compare GPUs: ours on what was left out, and the baselines beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpusage_lab.learning.scores import Score, score
from gpusage_lab.learning.step_baselines import constant_roofline, ratio_forest
from gpusage_lab.learning.step_flat import Array
from gpusage_lab.learning.step_rows import StepRow
from gpusage_lab.learning.step_samples import Measurements
from gpusage_lab.learning.targets import Cell, ScoreTable

GPU_COLUMNS = (
    *("rows of", "n", "ours", "bias %", "coverage %", "high/low"),
    *("ours, host as others", "constant roofline"),
)
NEIGHBOURS = (("rtx-3090", "rtx-4090"), ("rtx-4090", "rtx-5090"), ("rtx-4090", "rtx-pro-6000-max-q"))
HALF, WITHOUT_MATRIX_UNITS = "fp16-pure", "titan-xp"
WIDE = (
    ("titan-xp", "titan-rtx"),
    ("titan-xp", "rtx-2080-ti"),
    ("titan-xp", "a100-sxm4-40gb"),
    ("titan-rtx", "a100-sxm4-40gb"),
    ("rtx-2080-ti", "a100-sxm4-40gb"),
)


def tables(measurements: Measurements, unseen_family: Array, unseen_gpu: Array, factor: Array) -> list[ScoreTable]:
    """Return the tables of GPUs and speed-ups.

    Args:
        measurements: What was measured.
        unseen_family: As `step_time.held_out_families` gives it.
        unseen_gpu: As `step_time.held_out_gpus` gives it.
        factor: From the point to either end of the interval where the GPU was unseen.
    """
    return [
        _gpus(measurements, unseen_gpu, factor, constant_roofline(measurements.samples)),
        _speedups(
            measurements, unseen_family, NEIGHBOURS, "timm infer", "Neighbour generations: speed-up, unseen family"
        ),
        _speedups(measurements, unseen_family, WIDE, "torchvision", "Wide generations: speed-up, unseen family"),
    ]


def _gpus(measurements: Measurements, unseen: Array, factor: Array, plain: Array) -> ScoreTable:
    measured = measurements.measured_s
    rows: list[tuple[Cell, ...]] = []
    left_out = ~np.isnan(unseen[:, 0])
    for source in sorted({row.source for row in measurements.rows}):
        for gpu in [*sorted({row.gpu.name for row in measurements.rows if row.source == source}), "all"]:
            chosen = left_out & np.array(
                [row.source == source and gpu in (row.gpu.name, "all") for row in measurements.rows]
            )
            if chosen.any():
                ours = _score(measured, unseen[:, 0], factor, chosen)
                figures = (100 * ours.mape, 100 * ours.bias, 100 * (ours.coverage or 0.0), ours.width)
                baseline = score(measured[chosen], plain[chosen])
                hosted = score(measured[chosen], unseen[chosen, 1])
                rows.append((f"{source}: {gpu}", ours.row_count, *figures, 100 * hosted.mape, 100 * baseline.mape))
    return ScoreTable(
        title="Step time on an unseen GPU, MAPE %",
        columns=GPU_COLUMNS,
        rows=tuple(rows),
        notes=(
            "No row and no operator of the GPU was learned; its model families may have been, on other GPUs.",
            "Host as others: launches as fast as in the source's other campaigns, which no graph and no GPU shows.",
        ),
    )


def _score(measured: Array, predicted: Array, factor: Array, chosen: Array) -> Score:
    point = predicted[chosen]
    return score(measured[chosen], point, point / factor[chosen], point * factor[chosen])


def _speedups(
    measurements: Measurements, unseen: Array, pairs: Sequence[tuple[str, str]], source: str, title: str
) -> ScoreTable:
    rows: list[tuple[Cell, ...]] = []
    for pair in pairs:
        for label, matched in _matched(measurements.rows, pair, source):
            slow, fast = matched[:, 0], matched[:, 1]
            samples = np.array([row.workload.batch_size for row in measurements.rows], dtype=float)

            def gain(step_s: Array, slow: Array = slow, fast: Array = fast, samples: Array = samples) -> Array:
                return (step_s[slow] / samples[slow]) / (step_s[fast] / samples[fast])

            rows.append(_speedup(f"{pair[0]} -> {pair[1]}{label}", measurements, matched, unseen, gain))
    return ScoreTable(
        title=title,
        columns=("pair", "n", "ours", "ours, calibrated", "constant", "random forest"),
        rows=(*rows, *mean_rows(rows)),
        notes=(
            "MAPE % of the ratio of samples per second.",
            "All but ours learn from the other families' ratios of the same pair of GPUs.",
        ),
    )


def mean_rows(rows: Sequence[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """Return the means over *rows*: of all and, where the precision is in their names, of each kind of precision.

    A Titan Xp has no matrix units. In half precision it is as slow as in fp32, so it stands apart.
    """
    names = [str(row[0]) for row in rows]
    is_half = [name.endswith(HALF) for name in names]
    is_old = [name.startswith(WITHOUT_MATRIX_UNITS) for name in names]
    parts = {
        "mean": [True] * len(rows),
        "mean of fp32": [name.endswith("fp32") for name in names],
        "mean of half precision, Titan Xp left out": [
            half and not old for half, old in zip(is_half, is_old, strict=True)
        ],
        "mean of half precision, Titan Xp": [half and old for half, old in zip(is_half, is_old, strict=True)],
    }
    return [
        (
            name,
            None,
            *np.array([row[2:] for row, is_in in zip(rows, part, strict=True) if is_in], float).mean(0).tolist(),
        )
        for name, part in parts.items()
        if any(part)
    ]


def _speedup(
    label: str, measurements: Measurements, matched: Array, unseen: Array, gain: Callable[[Array], Array]
) -> tuple[Cell, ...]:
    measured, ours = gain(measurements.measured_s), gain(unseen[:, 0])
    hosted = gain(unseen[:, 1])
    groups = [measurements.rows[index].family for index in matched[:, 0]]
    forest, constant, offset = ratio_forest(measurements, matched, measured, hosted, groups)
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
        both = [[by_gpu[name] for name in pair] for by_gpu in models.values() if len(by_gpu) == len(pair)]
        if both:
            yield cell, np.array(both)
