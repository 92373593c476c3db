"""What the public record was to meet, and whether it does: a table beside the summaries of `public_record`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.published.compared import Compared

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
