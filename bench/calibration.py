"""What a calibration of a host makes of the predictions for other models there, in public campaigns.

For each model, the steps of the three models of other families in its campaign that wait most for the host stand for
`gpusage calibrate`. Torchvision's four hosts are predicted by a fit without their source (minutes), its sealed families
left out; the published sources are in no fit of step times. *Plain factor*: the same steps, measured over predicted.

Example: python bench/calibration.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import log
from typing import NamedTuple

import numpy as np

from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.artifacts import pretrained
from gpusage.predictors.times.efficiency import Efficiency
from gpusage.predictors.times.step_time import engine_of, host_factor_of, step_times_s, timing_with
from gpusage_hooks.types import Gpu, Interval
from gpusage_lab.learning.step_samples import measurements, refit
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.comparison import compare, is_of_slow_t4
from gpusage_lab.published.rows import LANGUAGE, VISION
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import load_zoo

MODELS, MOST_APART = 3, 2.0
HEAD = (
    *("campaign", "n", "host", "usual", "calibrated", "plain factor"),
    *("inside %, usual", "calibrated", "high/low", "calibrated"),
)


class Row(NamedTuple):
    """A measured step, and what is predicted of it on a GPU: the step, and seconds in which a kernel runs."""

    campaign: str
    family: str
    measured_s: float
    gpu: Gpu
    predict: Callable[[Gpu], tuple[Interval, float]]


def _predict(analysis: WorkloadAnalysis, efficiency: Efficiency, gpu: Gpu) -> tuple[Interval, float]:
    timing = timing_with(efficiency, analysis.kernels, [gpu], analysis.workload.precision)
    (step_s,) = step_times_s(efficiency, analysis.graph, analysis.workload, [gpu], timing)
    return step_s, float(timing.busy_s[0])


def _rows(data: DataFolder) -> Iterator[Row]:
    measured, zoo = measurements(data), load_zoo()
    is_own = np.array([row.source.startswith("torchvision") for row in measured.rows])
    fitted = replace(refit(measured, np.flatnonzero(~is_own)).efficiency, deviations=pretrained().step_time.deviations)
    for step in (measured.rows[index] for index in np.flatnonzero(is_own)):
        predict = partial(_predict, WorkloadAnalysis(zoo.graph(step.key), step.workload), fitted)
        yield Row(step.campaign, step.family, step.measured_s - step.copy_s, step.gpu, predict)

    for one in compare(data, zoo).compared:
        run, row = one.run, one.run.row
        is_eager = engine_of(run.workload) == "eager" and "torch" in row.framework.lower()
        if not is_eager or run.memory or run.workload.generate or run.workload.gpus > 1 or is_of_slow_t4(row):
            continue
        analysis = analyze(zoo.graph(run.key), run.workload)
        predict = partial(_predict, analysis, analysis.efficiency)
        name = f"{row.source}, {row.framework.partition(' (')[0]}, {run.gpu.name}"
        yield Row(name, run.key, predict(run.gpu)[0].value / one.ratio, run.gpu, predict)


def _scores(rows: list[Row]) -> Iterator[tuple[float, ...]]:
    """Yield for each of *rows*, of one campaign: the factor by other families, three misses, two hits, two widths."""
    usual = [row.predict(row.gpu) for row in rows]
    by_family: dict[str, list[tuple[float, float, float]]] = {}
    for row, (step_s, busy_s) in zip(rows, usual, strict=True):
        factor = host_factor_of(row.measured_s, step_s.value, busy_s)
        figures = busy_s / step_s.value, factor, row.measured_s / step_s.value
        by_family.setdefault(row.family, []).append(figures)
    for row, (before, _) in zip(rows, usual, strict=True):
        others = [np.array(each) for family, each in by_family.items() if family != row.family]
        others = sorted(others, key=lambda each: float(each[:, 0].mean()))[:MODELS]
        shown = [np.nanmedian(each[:, 1]) for each in others if np.isfinite(each[:, 1]).any()]
        is_sure = bool(shown) and max(shown) <= MOST_APART * min(shown)
        factor = float(np.median(shown)) if is_sure else 1.0
        after, _ = row.predict(replace(row.gpu, host_factor=factor))
        plain_s = float(np.median([np.median(each[:, 2]) for each in others])) * before.value
        misses = (abs(log(each / row.measured_s)) for each in (before.value, after.value, plain_s))
        hits = (each.low <= row.measured_s <= each.high for each in (before, after))
        yield factor, *misses, *hits, *(log(each.high / each.low) for each in (before, after))


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return the table of all campaigns that have enough families."""
    campaigns = dict[str, list[Row]]()
    for row in _rows(DataFolder(data.folder, is_sealed=True)):
        campaigns.setdefault(row.campaign, []).append(row)
    scores = {name: [*_scores(rows)] for name, rows in campaigns.items() if len({row.family for row in rows}) > MODELS}
    scores["all"] = [score for each in scores.values() for score in each]

    title = "A calibrated host: other models there, median factors"
    lines: list[tuple[Cell, ...]] = []
    for name, each in scores.items():
        factor, *misses, hit, hit_after, width, width_after = np.array(each).T
        factors = (np.median(factor), *(np.exp(np.median(one)) for one in misses))
        inside, widths = (100 * hit.mean(), 100 * hit_after.mean()), (np.median(width), np.median(width_after))
        cells = (*(f"{one:.2f}" for one in factors), *(f"{one:.0f}" for one in inside))
        lines.append((name, len(each), *cells, *(f"{np.exp(one):.1f}" for one in widths)))
    return [ScoreTable(title=title, columns=HEAD, rows=tuple(lines))]


main = command_of("calibration", tables, (VISION, LANGUAGE))

if __name__ == "__main__":
    main()
