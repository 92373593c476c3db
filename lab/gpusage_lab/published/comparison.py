"""The target ``published``: each published figure beside what gpusage predicts, the goals, and summaries of the rows.

Nothing is fitted here, and a row is predicted as a user would ask for it: of its model, batch, precision and GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpusage.predictors.memory.peak import context_of
from gpusage.predictors.needs import predicted
from gpusage_hooks.errors import GpuUsageError
from gpusage_hooks.types import Decoding, GpuNeed, Interval, Workload
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.progress import track
from gpusage_lab.published.rows import PublishedRow, published_rows
from gpusage_lab.published.runs import TIMES, Left, Run, run_of
from gpusage_planning.zoo import Zoo, load_zoo


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A published figure beside ours, in the publisher's unit.

    Attributes:
        ratio: Predicted over published time or memory.
        star: Why the prediction is not familiar; empty where it is.
    """

    run: Run
    ours: Interval
    ratio: float
    star: str

    @property
    def factor(self) -> float:
        """Return how far the prediction is off, in either direction; 1 where it is right."""
        return max(self.ratio, 1.0 / self.ratio)

    @property
    def is_inside(self) -> bool:
        """Tell whether the published figure lies in our 90 % interval."""
        return self.ours.low <= self.run.row.value <= self.ours.high


LEAST_ROWS = 10
"""A kind of fewer rows is not looked at alone."""
RATIO, FACTOR, INSIDE, WORST = "median ratio", "median factor", "inside %", "worst kind"
UNSTARRED, ALL = "without a star", "all"
_TRAINING = "language model, training, "


class Goal(NamedTuple):
    """A figure of some rows, and the least and the greatest value that meets it."""

    rows: str
    includes: Callable[[Compared], bool]
    figure: str
    least: float
    most: float


def goals_table(rows: Sequence[Compared]) -> ScoreTable:
    """Return each goal, and what *rows* have of it."""
    lines = list(_lines(rows))
    met = sum(line[-1] == "met" for line in lines)
    kinds = _factors_of_kinds(rows)
    worst = f" The worst of all: {max(kinds, key=kinds.__getitem__)}." if kinds else ""
    return ScoreTable(
        title="The public record against its goals",
        columns=("rows", "n", "figure", "goal", "ours", ""),
        rows=tuple(lines),
        notes=(
            f"Goals met: {met} of {len(lines)}.",
            f"Worst kind: the largest median factor of a kind of {LEAST_ROWS} rows or more.{worst}",
        ),
    )


def _lines(rows: Sequence[Compared]) -> Iterator[tuple[Cell, ...]]:
    for goal in GOALS:
        chosen = [one for one in rows if goal.includes(one)]
        if chosen:
            value = _FIGURES[goal.figure](chosen)
            text = f"at most {goal.most:g}" if goal.least == 1 else f"{goal.least:g} to {goal.most:g}"
            verdict = "met" if goal.least <= value <= goal.most else "**missed**"
            yield goal.rows, len(chosen), goal.figure, text, round(value, 3), verdict


def _median_factor(rows: Sequence[Compared]) -> float:
    return float(np.median([one.factor for one in rows]))


def _factors_of_kinds(rows: Sequence[Compared]) -> dict[str, float]:
    kinds: dict[str, list[Compared]] = {}
    for one in rows:
        kinds.setdefault(one.run.group, []).append(one)
    return {kind: _median_factor(part) for kind, part in kinds.items() if len(part) >= LEAST_ROWS}


_FIGURES: dict[str, Callable[[Sequence[Compared]], float]] = {
    RATIO: lambda rows: float(np.median([one.ratio for one in rows])),
    FACTOR: _median_factor,
    INSIDE: lambda rows: 100.0 * float(np.mean([one.is_inside for one in rows])),
    WORST: lambda rows: max(_factors_of_kinds(rows).values(), default=1.0),
}


def _is_of(*beginnings: str) -> Callable[[Compared], bool]:
    return lambda one: one.run.group.startswith(beginnings)


def _is_unstarred(one: Compared) -> bool:
    return not one.star


def _is_quantized(one: Compared) -> bool:
    return one.run.group.startswith("generation") and "quantized" in one.run.group


def _is_tuned(one: Compared) -> bool:
    return one.run.group == "memory, training" and one.run.row.mode == "finetune"


def _has_adapters(one: Compared) -> bool:
    return _is_tuned(one) and (one.run.workload.lora is not None or one.run.workload.trainable < 1)


GOALS = (
    Goal(UNSTARRED, _is_unstarred, RATIO, 0.9, 1.1),
    Goal(UNSTARRED, _is_unstarred, FACTOR, 1, 1.25),
    Goal(UNSTARRED, _is_unstarred, INSIDE, 85, 95),
    Goal(UNSTARRED, _is_unstarred, WORST, 1, 1.6),
    Goal(ALL, lambda _: True, FACTOR, 1, 1.25),
    Goal(ALL, lambda _: True, INSIDE, 80, 97),
    Goal(ALL, lambda _: True, WORST, 1, 1.5),
    Goal(f"{_TRAINING}1 to 8 GPUs", _is_of(f"{_TRAINING}1 to 8"), FACTOR, 1, 1.3),
    Goal(f"{_TRAINING}16 to 512 GPUs", _is_of(f"{_TRAINING}more"), FACTOR, 1, 1.3),
    Goal(f"{_TRAINING}tensor, context and pipeline parallelism", _is_of(f"{_TRAINING}tensor"), FACTOR, 1, 1.3),
    Goal(f"{_TRAINING}expert parallelism", _is_of(f"{_TRAINING}expert"), FACTOR, 1, 1.3),
    Goal(f"{_TRAINING}QLoRA", _is_of(f"{_TRAINING}QLoRA"), FACTOR, 1, 1.3),
    Goal("generation, eager", _is_of("generation, eager, half"), FACTOR, 1, 1.3),
    Goal("generation, compiled", _is_of("generation, compile"), FACTOR, 1, 1.3),
    Goal("generation, quantised", _is_quantized, FACTOR, 1, 1.3),
    Goal("generation, served", _is_of("generation, vllm", "generation, tensorrt-llm"), FACTOR, 1, 1.3),
    Goal("inference in engines", lambda one: one.run.group.endswith("engine"), FACTOR, 1, 1.25),
    Goal("memory, LoRA", _has_adapters, FACTOR, 1, 1.12),
    Goal("memory, QLoRA", _is_of("memory, training, QLoRA"), FACTOR, 1, 1.12),
    Goal("memory, full fine-tuning", lambda one: _is_tuned(one) and not _has_adapters(one), FACTOR, 1, 1.12),
)


FIGURES = ("n", "median ratio", "median factor", "inside %")
SUMMARY = ("rows of", *FIGURES, *(f"unstarred: {name}" for name in FIGURES))
RATIO_NOTE = "Ratio: predicted over published time or memory, so above 1 is too slow or too large."
FACTOR_NOTE = "Factor: the larger of ratio and 1 over ratio. Inside: the published value lies in the 90 % interval."
WITHOUT_SLOW_T4 = "all, without the T4 of NGC 20.06"
STARRED = "Starred: gpusage says itself that the model, GPU or setting is unlike those that it was fitted on."


class Record(NamedTuple):
    """All rows of the published tables: those that are compared, and those that are left."""

    compared: Sequence[Compared]
    left: Sequence[Left]


def evaluate(data: DataFolder) -> list[ScoreTable]:
    """Return the summaries, and what is left out and why."""
    return summaries(compare(data, load_zoo()))


def compare(data: DataFolder, zoo: Zoo, includes: Callable[[Run], bool] = lambda _: True) -> Record:
    """Return each row of *data* that *includes* takes beside its prediction.

    Rows of one graph follow one another, so it is analysed once.
    """
    outcomes = [run_of(row) for row in published_rows(data)]
    left = [outcome for outcome in outcomes if isinstance(outcome, Left)]
    compared = []
    runs = [outcome for outcome in outcomes if isinstance(outcome, Run) and includes(outcome)]
    for run in track(sorted(runs, key=lambda one: (one.key, one.workload.mode)), description="the public record"):
        outcome = _compared(run, zoo)
        if isinstance(outcome, Left):
            left.append(outcome)
        else:
            compared.append(outcome)
    return Record(compared, left)


def _compared(run: Run, zoo: Zoo) -> Compared | Left:
    if run.key not in zoo:
        return Left(run.row, "the zoo has no card of the model at this size")
    graph = zoo.graph(run.key)
    try:
        need = predicted(graph, run.workload, [run.gpu])[0]
        if run.memory is not None:
            return _of_memory(run, need)
        step_s = need.step_time_s
        if run.without_prompt and run.workload.generate is not None:
            first = predicted(graph, _prompt_alone(run.workload), [run.gpu])[0].step_time_s
            share = 1.0 - min(first.value / step_s.value, 0.99)
            step_s = Interval(value=step_s.value * share, low=step_s.low * share, high=step_s.high * share)
    except GpuUsageError as error:
        return Left(run.row, str(error))
    if run.row.metric in TIMES:
        scale = 1e3 * run.units_per_step
        ours = Interval(value=scale * step_s.value, low=scale * step_s.low, high=scale * step_s.high)
        return Compared(run=run, ours=ours, ratio=ours.value / run.row.value, star=_star(need))
    units = run.units_per_step
    ours = Interval(value=units / step_s.value, low=units / step_s.high, high=units / step_s.low)
    return Compared(run=run, ours=ours, ratio=run.row.value / ours.value, star=_star(need))


def _prompt_alone(workload: Workload) -> Workload:
    prompt = workload.generate.prompt_tokens if workload.generate else 1
    return replace(workload, generate=Decoding(prompt_tokens=prompt, new_tokens=1))


def _of_memory(run: Run, need: GpuNeed) -> Compared:
    """Return the memory as the publisher counts it: of tensors, of the allocator, or of the whole process."""
    context = 0.0 if run.memory == "process" else context_of(run.gpu).value
    of = need.required_bytes if run.memory == "allocated" else need.memory_bytes
    scale = run.row.value / run.counted_bytes
    ours = Interval(
        value=scale * (of.value - context), low=scale * (of.low - context), high=scale * (of.high - context)
    )
    return Compared(run=run, ours=ours, ratio=ours.value / run.row.value, star=_star(need))


def _star(need: GpuNeed) -> str:
    return "" if need.familiar else need.notes[-1]


def summaries(record: Record) -> list[ScoreTable]:
    """Return the tables of all rows, of the goals, of each kind of rows, of each source, and of what is left out."""
    of_time = [one for one in record.compared if one.run.memory is None]
    of_memory = [one for one in record.compared if one.run.memory is not None]
    others = [one for one in record.compared if not is_of_slow_t4(one.run.row)]
    parts = (("time", of_time), ("memory", of_memory), ("all", record.compared), (WITHOUT_SLOW_T4, others))
    whole = tuple((name, *_both(part)) for name, part in parts)
    notes = (RATIO_NOTE, FACTOR_NOTE, STARRED)
    return [
        ScoreTable(title="The public record", columns=SUMMARY, rows=whole, notes=notes),
        goals_table(record.compared),
        _grouped("The public record by kinds of rows", record.compared, lambda one: one.run.group),
        _grouped("The public record by source", record.compared, lambda one: one.run.row.source),
        _grouped("The public record by GPU", record.compared, lambda one: one.run.gpu.name),
        _grouped("The public record by source, mode, precision and GPU", record.compared, _cell),
        _left_table(record.left),
    ]


def is_of_slow_t4(row: PublishedRow) -> bool:
    """Return whether NVIDIA ran *row* on its T4 of 2020; BERT's later table of the same runs is 1.6 times as fast."""
    return row.gpu.startswith("T4") and "NGC 20.06" in row.framework


def _cell(one: Compared) -> str:
    row = one.run.row
    return f"{row.source}, {row.mode}, {one.run.workload.precision}, {one.run.gpu.name}"


def _grouped(title: str, rows: Sequence[Compared], name_of: Callable[[Compared], str]) -> ScoreTable:
    groups: dict[str, list[Compared]] = {}
    for one in rows:
        groups.setdefault(name_of(one), []).append(one)
    cells = tuple((name, *_both(part)) for name, part in sorted(groups.items()))
    return ScoreTable(title=title, columns=SUMMARY, rows=cells)


def _both(rows: Sequence[Compared]) -> tuple[Cell, ...]:
    """Return the cells of `SUMMARY` after the name: of all *rows*, and of those without a star."""
    return (*figures(rows), *figures([one for one in rows if not one.star]))


def figures(rows: Sequence[Compared]) -> tuple[Cell, ...]:
    """Return the cells of `FIGURES`."""
    if not rows:
        return (0, None, None, None)
    ratio, factor = (float(np.median(each)) for each in ([one.ratio for one in rows], [one.factor for one in rows]))
    inside = 100.0 * sum(one.is_inside for one in rows) / len(rows)
    return len(rows), round(ratio, 2), round(factor, 2), round(inside, 1)


def _left_table(left: Sequence[Left]) -> ScoreTable:
    counts = Counter(one.reason for one in left)
    rows = tuple((reason, count, _examples(left, reason)) for reason, count in counts.most_common())
    return ScoreTable(
        title="Rows that are not predicted", columns=("reason", "n", "models, the most common"), rows=rows
    )


def _examples(left: Sequence[Left], reason: str, most: int = 6) -> str:
    models = Counter(one.row.model for one in left if one.reason == reason)
    more = f" and {len(models) - most} more" if len(models) > most else ""
    return ", ".join(f"{model} ({count})" for model, count in models.most_common(most)) + more
