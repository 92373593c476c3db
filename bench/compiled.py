"""Compiled models of timm: the eager prediction, one factor of it, fused operators, and factors by class on top.

What is fitted is scored on families that it has not seen, in five folds. Sealed families are left out. The eager
prediction is the shipped one, which has seen the eager runs of all families.

Example: python bench/compiled.py --data ../shared/data
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize  # type: ignore[import-untyped, unused-ignore]

from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.times.efficiency import GROUPS, INDUCTOR, CompilerEffect, with_compiler
from gpusage.predictors.times.kernel_times import ideal_times, kernel_times
from gpusage.predictors.times.kernels import kernels_of
from gpusage.predictors.times.step_time import timing_with
from gpusage.predictors.work.lowering import fused
from gpusage_lab.learning.seal import is_sealed
from gpusage_lab.learning.step_rows import TIMM_DEVICES, TIMM_PRECISIONS, StepRow, graph_as_measured, timm_row
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.progress import track
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import Zoo, load_zoo

FILE = "timm_benchmark.csv"
EVERY = 6
FOLDS = 5
TOWARDS_ONE = 0.01
"""How much a factor's squared logarithm counts against the mean error."""
OVERLAP = 4.0
Array = npt.NDArray[Any]


class Runs(NamedTuple):
    """One entry a row.

    Attributes:
        eager_s: The shipped prediction of the model without a compiler.
        fused_s: That of the fused kernels, nothing fitted.
        shipped_s: As `gpusage predict` says it now.
        groups_s: Fused kernels of each of `GROUPS`, shape (rows, groups), their least time left out.
        least_s: The sum of their least times.
        host_s: What the host takes to start the fused kernels.
    """

    families: Array
    measured_s: Array
    eager_s: Array
    fused_s: Array
    shipped_s: Array
    groups_s: Array
    least_s: Array
    host_s: Array


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return the errors on unseen families, and what was fitted."""
    runs = _runs(data)
    ways: dict[str, Array] = {
        "eager prediction": runs.eager_s,
        "eager prediction, one factor": _held_out(runs, lambda train: _scaled(runs, runs.eager_s, train)),
        "fused operators, nothing fitted": runs.fused_s,
        "fused operators, one factor": _held_out(runs, lambda train: _scaled(runs, runs.fused_s, train)),
        "fused operators, factors by class": _held_out(runs, lambda train: _predicted(runs, _fitted(runs, train))),
        "as shipped, families seen": runs.shipped_s,
    }
    fits = [_fitted(runs, _fold(runs) != number) for number in range(FOLDS)]
    names = ("convolutions", "other products", "fused", "copies and casts")
    figures = np.array([one.factors for one in fits])
    rows = zip(
        names, figures.min(axis=0), np.median(figures, axis=0), figures.max(axis=0), INDUCTOR.factors, strict=True
    )
    return [
        ScoreTable(
            title="Compiled models of timm, unseen families",
            columns=("way", "rows", "MAPE %", "median", "mean of families", "bias %", "90 % within x"),
            rows=tuple((name, *_errors(runs, predicted_s)) for name, predicted_s in ways.items()),
        ),
        ScoreTable(
            title="What a compiler changes: least, median and most of five fits, and what is shipped",
            columns=("factor of", "least", "median", "most", "shipped"),
            rows=tuple((name, *map(float, values)) for name, *values in rows),
        ),
    ]


def _runs(data: DataFolder) -> Runs:
    zoo = load_zoo()
    rows = _rows(data, zoo)
    columns = [_run(row, zoo) for row in track(rows, description="compiled")]
    families, measured_s = np.array([row.family for row in rows]), np.array([row.measured_s for row in rows])
    return Runs(families, measured_s, *(np.array(column) for column in zip(*columns, strict=True)))


def _rows(data: DataFolder, zoo: Zoo) -> list[StepRow]:
    """Return one compiled row in so many, by its name."""
    table = data.read(FILE)
    is_known = table.device.isin(list(TIMM_DEVICES)) & table.precision.isin(list(TIMM_PRECISIONS))
    chosen = table[is_known & (table.torch_compile == 1)].to_dict("records")
    rows = [timm_row(row, zoo, ", compiled") for row in chosen if _number(_name(row)) % EVERY == 0]
    return [row for row in rows if row.key in zoo and not is_sealed(row.family)]


def _name(row: Any) -> str:  # a record of a table
    return f"{row['model']} {row['device']} {row['torch_version']} {row['precision']}"


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


def _run(row: StepRow, zoo: Zoo) -> tuple[float, float, float, Array, float, float]:
    """Return what `Runs` has of a row after its measured seconds."""
    analysis = WorkloadAnalysis(graph_as_measured(row, zoo), row.workload)
    precision = row.workload.precision
    efficiency, kernels = analysis.efficiency, kernels_of(fused(analysis.lowering), row.workload)
    eager, plain = (timing_with(efficiency, one, [row.gpu], precision) for one in (analysis.kernels, kernels))
    shipped = timing_with(with_compiler(efficiency), kernels, [row.gpu], precision)
    times = kernel_times(efficiency, kernels, ideal_times(kernels, [row.gpu], precision))
    own = float(efficiency.gpu_factors((row.gpu.board,))[0]) * kernels.counts
    busy_s = (times.total_s[:, 0] - times.launch_s[:, 0]) * own
    groups_s = np.array([busy_s[np.isin(kernels.operator_class, group)].sum() for group in GROUPS])
    least_s = float(times.launch_s[:, 0] @ own)
    return (
        float(eager.step_s[0]),
        float(plain.busy_s[0]),
        float(shipped.step_s[0]),
        groups_s,
        least_s,
        float(kernels.host_counts @ efficiency.host_s),
    )


def _fold(runs: Runs) -> Array:
    return np.array([_number(family) % FOLDS for family in runs.families.tolist()])


def _held_out(runs: Runs, predicted: Callable[[Array], Array]) -> Array:
    """Return what *predicted*, fitted on the other families, says of each family."""
    fold, result = _fold(runs), np.zeros(len(runs.measured_s))
    for number in range(FOLDS):
        result[fold == number] = predicted(fold != number)[fold == number]
    return result


def _scaled(runs: Runs, predicted_s: Array, train: Array) -> Array:
    return np.asarray(predicted_s * np.exp(np.median(np.log(runs.measured_s / predicted_s)[train])))


def _predicted(runs: Runs, compiler: CompilerEffect) -> Array:
    busy_s = runs.groups_s @ np.array(compiler.factors) + runs.least_s
    return np.asarray((busy_s**OVERLAP + runs.host_s**OVERLAP) ** (1.0 / OVERLAP))


def _fitted(runs: Runs, train: Array) -> CompilerEffect:
    """Return the compiler by which the logarithms of the training rows err least."""
    train_runs = Runs(*(column[train] for column in runs))

    def error(logarithms: Array) -> float:
        wrong = np.abs(np.log(_predicted(train_runs, _compiler(logarithms)) / train_runs.measured_s)).mean()
        return float(wrong + TOWARDS_ONE * np.mean(logarithms**2))

    return _compiler(minimize(error, np.zeros(len(GROUPS)), method="Powell", options={"maxiter": 3000}).x)


def _compiler(logarithms: Array) -> CompilerEffect:
    first, second, third, fourth = np.exp(logarithms).tolist()
    return CompilerEffect(factors=(first, second, third, fourth), deviation=0.0)


def _errors(runs: Runs, predicted_s: Array) -> tuple[int, float, float, float, float, float]:
    ratio = predicted_s / runs.measured_s
    wrong = 100.0 * np.abs(ratio - 1.0)
    of_families = [wrong[runs.families == family].mean() for family in np.unique(runs.families)]
    return (
        len(ratio),
        float(wrong.mean()),
        float(np.median(wrong)),
        float(np.mean(of_families)),
        float(100.0 * (ratio - 1.0).mean()),
        float(np.exp(np.quantile(np.abs(np.log(ratio)), 0.9))),
    )


if __name__ == "__main__":
    command_of("compiled", tables, [FILE], __file__)()
