"""Ardagna et al.: step times extrapolated beyond the measurements, by regression on a run's settings, and by ours.

For every network they fit a linear regression on batch size, number of GPUs and the GPU's rate, with inverse and
crossed terms, and ask it for what lies beyond its training rows. The same on the public runs of Gavel, Sia, Zeus
and torchvision, each network by itself, beside ours: from the graph alone, and with a line fitted on the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls  # type: ignore[import-untyped, unused-ignore]
from scipy.stats import f as f_distribution  # type: ignore[import-untyped, unused-ignore]

from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.ardagna_runs import MeasuredRun, runs

FloatArray = npt.NDArray[np.float64]
ENTER, REMOVE = 0.05, 0.10
"""Chance of an F value as large for a term of no worth: below the first it enters, above the second it leaves."""
LEAST_SHARE = 0.05
"""Of the smallest time that was learned from: a line that goes below it says nothing."""


class Line(NamedTuple):
    """The terms that were chosen, their weights, the constant first, and the lowest prediction."""

    terms: tuple[int, ...]
    weights: FloatArray
    least: float


def augmented(features: FloatArray) -> FloatArray:
    """Return *features*, their inverses, and the products of any two that are not of one feature."""
    count = features.shape[1]
    terms = np.concatenate([features, 1.0 / features], axis=1)
    crossed = [terms[:, a] * terms[:, b] for a, b in combinations(range(2 * count), 2) if b - a != count]
    return np.concatenate([terms, *(column[:, np.newaxis] for column in crossed)], axis=1)


def fit_line(terms: FloatArray, target: FloatArray) -> Line:
    """Return the line that stepwise selection chooses; with too few rows it is the mean."""
    chosen: list[int] = []
    useful = [column for column in range(terms.shape[1]) if np.ptp(terms[:, column]) > 0]
    for _ in range(2 * len(useful)):
        entering = _best_to_enter(terms, target, chosen, useful)
        if entering is None:
            break
        chosen.append(entering)
        leaving = _worst_to_leave(terms, target, chosen)
        if leaving == entering:
            chosen.remove(leaving)
            break
        if leaving is not None:
            chosen.remove(leaving)
    weights, _ = _solved(terms, target, chosen)
    return Line(tuple(chosen), weights, LEAST_SHARE * float(target.min()))


def predict_line(line: Line, terms: FloatArray) -> FloatArray:
    """Return what the line says."""
    return np.maximum(_design(terms, line.terms) @ line.weights, line.least)


def _design(terms: FloatArray, chosen: Sequence[int]) -> FloatArray:
    return np.concatenate([np.ones((len(terms), 1)), terms[:, list(chosen)]], axis=1)


def _solved(terms: FloatArray, target: FloatArray, chosen: Sequence[int]) -> tuple[FloatArray, float]:
    """Return weights and the sum of the squared residuals; columns are scaled, as they differ by many powers of ten."""
    design = _design(terms, chosen)
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
    weights = np.linalg.lstsq(design / scale, target, rcond=None)[0] / scale
    return weights, float(((design @ weights - target) ** 2).sum())


def _chance(smaller: float, larger: float, freedom: int) -> float:
    """Return how likely a term of no worth would lower the residuals from *larger* to *smaller* or further."""
    if freedom <= 0:
        return 1.0
    return float(f_distribution.sf((larger - smaller) / max(smaller / freedom, 1e-300), 1, freedom))


def _best_to_enter(terms: FloatArray, target: FloatArray, chosen: list[int], useful: list[int]) -> int | None:
    free = [term for term in useful if term not in chosen]
    freedom = len(target) - len(chosen) - 2
    if not free or freedom <= 0:
        return None
    before = _solved(terms, target, chosen)[1]
    after, best = min((_solved(terms, target, [*chosen, term])[1], term) for term in free)
    return best if _chance(after, before, freedom) < ENTER else None


def _worst_to_leave(terms: FloatArray, target: FloatArray, chosen: list[int]) -> int | None:
    freedom = len(target) - len(chosen) - 1
    now = _solved(terms, target, chosen)[1]
    losses = [
        (_chance(now, _solved(terms, target, [t for t in chosen if t != term])[1], freedom), term) for term in chosen
    ]
    chance, worst = max(losses)
    return worst if chance > REMOVE else None


FILES = ("gavel_solo.csv", "sia_step_times.csv", "torchvision_gpu_bench.csv", "timm_benchmark.csv")
LEAST_ROWS = 3
SMALL = 0.5
"""Batches up to this share of the largest one train."""


class Extrapolation(NamedTuple):
    """One question: which runs belong together, which of them are beyond the others, and what is known of a run.

    *known* names the settings that the regression sees, the one that is extrapolated first; *power* says how the plain
    rule scales the nearest run with it.
    """

    title: str
    together: Callable[[MeasuredRun], tuple[object, ...]]
    known: tuple[str, ...]
    power: float


PAPER: dict[str, dict[str, float]] = {
    "batch size": {
        "AlexNet, PyTorch": 3.63,
        "ResNet-50, PyTorch": 9.01,
        "ResNet-50, TensorFlow": 6.21,
        "VGG-19, PyTorch": 15.25,
        "DeepSpeech, TensorFlow": 9.95,
    },
    "number of GPUs": {
        "AlexNet, PyTorch": 8.12,
        "ResNet-50, PyTorch": 8.64,
        "ResNet-50, TensorFlow": 16.47,
        "VGG-19, PyTorch": 17.44,
        "DeepSpeech, TensorFlow": 16.77,
    },
    "compute power": {
        "AlexNet, PyTorch": 8.28,
        "ResNet-50, PyTorch": 18.09,
        "ResNet-50, TensorFlow": 10.10,
        "DeepSpeech, TensorFlow": 11.72,
    },
    "inner modules": {"ResNet, PyTorch": 20.03},
}
"""The paper's MAPE, the mean over types and numbers of GPUs."""

EXTRAPOLATIONS = (
    Extrapolation("batch size", lambda run: (run.source, run.network, run.gpu, run.gpu_count), ("batch_size",), 1.0),
    Extrapolation("number of GPUs", lambda run: (run.source, run.network, run.gpu), ("gpu_count", "batch_size"), 0.0),
    Extrapolation(
        "compute power", lambda run: (run.source, run.network), ("peak_tflop_per_s", "batch_size", "gpu_count"), -1.0
    ),
    Extrapolation(
        "inner modules",
        lambda run: (run.source, run.network.rstrip("0123456789"), run.gpu),
        ("modules", "gpu_count"),
        1.0,
    ),
)


class Extrapolated(NamedTuple):
    """A run that tested, and the seconds that each way says of it."""

    run: MeasuredRun
    regression: float
    rule: float
    ours: float
    ours_with_line: float


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return the experiment's tables: those that the files which are there can fill."""
    measured = runs(data)
    return [table(question, measured) for question in EXTRAPOLATIONS if any(splits(question, measured))]


def table(question: Extrapolation, measured: Sequence[MeasuredRun]) -> ScoreTable:
    """Return one question's table: a row a source and network, the mean, and the paper's figures."""
    answers = [one for train, test in splits(question, measured) for one in extrapolate(question, train, test)]
    rows: list[tuple[str | float | None, ...]] = []
    for name in sorted({_name(question, one.run) for one in answers}):
        own = [one for one in answers if _name(question, one.run) == name]
        rows.append((name, str(len(own)), *_errors(own)))
    rows.append(("all", str(len(answers)), *_errors(answers)))
    rows.append(("all, median error", str(len(answers)), *_errors(answers, np.median)))
    quoted = PAPER[question.title].items()
    rows += [(f"the paper: {name}", None, error, None, None, None) for name, error in quoted]
    return ScoreTable(
        title=f"Ardagna, end to end: extrapolation of the {question.title}, MAPE %",
        columns=("source: network", "rows", "regression", "plain rule", "ours, graph alone", "ours, line by the rows"),
        rows=tuple(rows),
        notes=(
            _SPLITS[question.title],
            "Regression: inverse and crossed terms, stepwise. Line: a + b x ours, learned from the same rows.",
            f"Plain rule: the nearest run, {_RULES[question.power]}. Sources do not give the precision: taken as fp32.",
        ),
    )


_SPLITS = {
    "batch size": "A network on one type and number of GPUs: batches up to half the largest train, larger ones test.",
    "number of GPUs": "A network on one type of GPU: the largest number tests, the smaller ones train.",
    "compute power": "A network: the GPU of the highest fp32 peak tests, the others train.",
    "inner modules": "Networks of one kind on one type of GPU: the deepest tests, the shallower ones train.",
}
_RULES = {1.0: "in proportion", 0.0: "as it is", -1.0: "in inverse proportion"}


def splits(
    question: Extrapolation, measured: Sequence[MeasuredRun]
) -> Iterator[tuple[list[MeasuredRun], list[MeasuredRun]]]:
    """Yield the training runs and those that test, for each group in which both are enough.

    Only one setting is extrapolated: in the others a tested run lies within the training runs.
    """
    first, *others = question.known
    groups: dict[tuple[object, ...], list[MeasuredRun]] = {}
    for run in measured:
        if getattr(run, first) is not None:
            groups.setdefault(question.together(run), []).append(run)
    for group in groups.values():
        values = np.array([float(getattr(run, first)) for run in group])
        limit = SMALL * values.max() if question.title == "batch size" else values.max() * (1.0 - 1e-9)
        train = [run for run, value in zip(group, values, strict=True) if value <= limit]
        beyond = [run for run, value in zip(group, values, strict=True) if value > limit]
        test = [run for run in beyond if all(_is_inside_training_range(run, train, name) for name in others)]
        if test and len({getattr(run, first) for run in train}) > 1 and len(train) >= LEAST_ROWS:
            yield train, test


def _is_inside_training_range(run: MeasuredRun, train: Sequence[MeasuredRun], name: str) -> bool:
    known = [getattr(other, name) for other in train]
    return bool(known) and min(known) <= getattr(run, name) <= max(known)


def extrapolate(
    question: Extrapolation, train: Sequence[MeasuredRun], test: Sequence[MeasuredRun]
) -> list[Extrapolated]:
    """Return what each way says of the runs *test*, knowing the runs *train*."""
    line = fit_line(_terms(question, train), np.array([run.step_s for run in train]))
    predictions = predict_line(line, _terms(question, test)).tolist()
    return [
        Extrapolated(run, value, _rule(question, train, run), run.ours_s, _with_line(train, run))
        for run, value in zip(test, predictions, strict=True)
    ]


def _with_line(train: Sequence[MeasuredRun], run: MeasuredRun) -> float:
    """Return ours put on the line of the runs with as many GPUs, or of all where these are too few for one."""
    alike = [other for other in train if other.gpu_count == run.gpu_count]
    by = alike if len(alike) > 1 else train
    known, target = (np.array([getattr(other, name) for other in by]) for name in ("ours_s", "step_s"))
    return float(with_line(known, target, np.array([run.ours_s]))[0])


def with_line(known: FloatArray, target: FloatArray, at: FloatArray) -> FloatArray:
    """Return a + b x *at*, neither below 0, that misses *target* at *known* least in relative terms."""
    design = np.stack([np.ones_like(known), known], axis=1) / target[:, np.newaxis]
    (start, slope), _ = nnls(design, np.ones_like(target))
    return np.asarray(start + slope * at)


def _terms(question: Extrapolation, measured: Sequence[MeasuredRun]) -> FloatArray:
    return augmented(np.array([[float(getattr(run, name)) for name in question.known] for run in measured]))


def _rule(question: Extrapolation, train: Sequence[MeasuredRun], run: MeasuredRun) -> float:
    """Return the nearest known run's time, scaled by the setting that is extrapolated."""
    first, *others = question.known

    def distance(other: MeasuredRun) -> tuple[float, float]:
        apart = sum(abs(np.log(getattr(other, name) / getattr(run, name))) for name in others)
        return float(apart), -float(getattr(other, first))

    nearest = min(train, key=distance)
    return float(nearest.step_s * (getattr(run, first) / getattr(nearest, first)) ** question.power)


def _name(question: Extrapolation, run: MeasuredRun) -> str:
    if not run.source.startswith("torchvision"):
        return f"{run.source}: {run.network}"
    if question.title != "inner modules":
        return f"{run.source}: all networks"
    return f"{run.source}: {run.network.rstrip('0123456789')}, {run.gpu_count} GPU"


def _errors(answers: Sequence[Extrapolated], middle: Callable[[FloatArray], Any] = np.mean) -> tuple[float, ...]:
    truth = np.array([one.run.step_s for one in answers])
    predictions = np.array([one[1:] for one in answers])
    return tuple((100.0 * middle(np.abs(values - truth) / truth)).item() for values in predictions.T)
