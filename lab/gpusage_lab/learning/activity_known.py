"""Utilization of real models: from the graph alone, and with one figure of an earlier run known.

Nothing is fitted on these rows. What a graph can show at most is scored as well: a job that waits for its data looks
like one that does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.plugins.loading import make_hooks
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import FloatArray
from gpusage_hooks.types import Interval, SoloRun
from gpusage_lab.learning import activity_tests
from gpusage_lab.learning.activity_tests import LEFT_OUT_NOTE, Test, error_of_constant, real_tests
from gpusage_lab.learning.hosts import Loads, held_out, load_of
from gpusage_lab.learning.scores import rank_correlation, rmsle
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder

TITLE = "Utilization of real models, none of them fitted on: RMSLE on percent"
OTHER_SOURCES = "constant of other sources"
WAITS = ("PointNet",)
"""Their steps last 7 to 14 times as long as their kernels, for a parser of text files; no graph shows it."""
GREATEST, LEAST = 1.0, 1e-3


def tables(data: DataFolder) -> tuple[ScoreTable, ...]:
    """Return the shipped predictor's errors on real models: utilization first, then every figure by source."""
    tests = [test for test in real_tests(data) if test.utilization is not None]
    return (known_table(tests), *activity_tests.tables(data))


def known_table(tests: Sequence[Test]) -> ScoreTable:
    """Return the errors by source and by what is known; each of *tests* has a utilization."""
    return ScoreTable(
        title=TITLE,
        columns=("source", "rows", "ours", "constant", OTHER_SOURCES, "coverage %", "rank correlation"),
        rows=tuple(
            line
            for source in sorted({test.source for test in tests})
            for line in _source_lines(
                source, [test for test in tests if test.source == source], _usual_percent(tests, but=source)
            )
        ),
        notes=(
            LEFT_OUT_NOTE,
            "Constant of other sources: the mean of their constants; nothing of the source is known.",
            "Step time known: as `step_time=` gives it. At another batch: `utilization=60@32`, of the nearest other.",
            "Host known: fitted on the campaign's other models; a job that parses its files spoils it.",
            "Ceiling: what a graph could show at most, every model exact but one that waits for its data,",
            "which is taken for one that does not. Of PPO and TD3 no step time is known.",
        ),
    )


def _source_lines(source: str, tests: Sequence[Test], usual: float | None) -> Iterator[tuple[Cell, ...]]:
    """Yield the lines of one source; *usual* is the utilization elsewhere, in percent."""
    truth = _percents(tests)
    yield _line(f"{source}, from the graph", tests, [_predicted(test, SoloRun()) for test in tests], usual)
    waits = np.array([test.model in WAITS for test in tests], dtype=bool)
    if waits.any():
        fed = [test for test in tests if test.model not in WAITS]
        yield _line(f"{source}, without PointNet", fed, [_predicted(test, SoloRun()) for test in fed], usual)
        yield _scores(f"{source}, ceiling of graphs", tests, np.where(waits, 100.0, truth), usual)
    yield _host_line(f"{source}, host known", tests, usual)
    timed = [test for test in tests if test.step_s is not None]
    if timed:
        predictions = [_predicted(test, SoloRun(step_time_s=test.step_s)) for test in timed]
        yield _line(f"{source}, step time known", timed, predictions, usual)
    batch_pairs = [(test, other) for test in tests if (other := other_batch(test, tests)) is not None]
    if batch_pairs:
        predictions = [_predicted(test, solo_run(other)) for test, other in batch_pairs]
        known = [test for test, _ in batch_pairs]
        yield _line(f"{source}, utilization at another batch known", known, predictions, usual)


def _host_line(name: str, tests: Sequence[Test], usual: float | None) -> tuple[Cell, ...]:
    loads = Loads(*np.array([load_of(WorkloadAnalysis(test.graph, test.workload), test.gpu) for test in tests]).T)
    return _scores(name, tests, held_out(loads, _percents(tests), [test.model for test in tests]), usual)


def _predicted(test: Test, alone: SoloRun) -> Interval:
    (need,) = _ADVISOR.predict(test.graph, replace(test.workload, alone=alone), [test.gpu])
    return need.gpu_utilization


def other_batch(test: Test, tests: Sequence[Test]) -> Test | None:
    """Return the run of the same model at the nearest other batch, the smaller of two that are as near."""
    others = [
        one
        for one in tests
        if (one.model, one.workload.precision) == (test.model, test.workload.precision)
        and one.workload.batch_size != test.workload.batch_size
    ]
    size = test.workload.batch_size
    return min(
        others,
        key=lambda one: (abs(np.log(one.workload.batch_size / size)), one.workload.batch_size),
        default=None,
    )


def solo_run(test: Test) -> SoloRun:
    """Return what a user knows who saw *test*."""
    share = float(np.clip((test.utilization or 0.0) / 100.0, LEAST, GREATEST))
    return SoloRun(utilization=share, batch_size=test.workload.batch_size)


def _percents(tests: Sequence[Test]) -> FloatArray:
    return np.array([test.utilization for test in tests], dtype=float)


def _line(name: str, tests: Sequence[Test], predictions: Sequence[Interval], usual: float | None) -> tuple[Cell, ...]:
    each = zip(predictions, _percents(tests), strict=True)
    inside = [100 * one.low <= value <= 100 * one.high for one, value in each]
    is_known = all(one.low == one.high for one in predictions)
    coverage = None if is_known else 100.0 * float(np.mean(inside))
    return _scores(name, tests, 100.0 * np.array([one.value for one in predictions]), usual, coverage)


def _scores(
    name: str, tests: Sequence[Test], ours: FloatArray, usual: float | None, coverage: float | None = None
) -> tuple[Cell, ...]:
    truth = _percents(tests)
    elsewhere = None if usual is None else rmsle(truth, np.full(len(truth), usual))
    constant = error_of_constant(truth, [test.model for test in tests])
    return name, len(truth), rmsle(truth, ours), constant, elsewhere, coverage, rank_correlation(truth, ours)


def _usual_percent(tests: Sequence[Test], *, but: str) -> float | None:
    """Return the utilization that is usual in all sources *but* one, each source alike; ``None`` without another."""
    others = sorted({test.source for test in tests} - {but})
    logs = [np.log1p(_percents([test for test in tests if test.source == source])).mean() for source in others]
    return float(np.expm1(np.mean(logs))) if logs else None


_ADVISOR = Advisor(hooks=make_hooks(), catalogue=builtin_catalogue())
