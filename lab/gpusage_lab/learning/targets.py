"""What can be learned: each target is a module with ``fit`` and ``evaluate``, imported when it is wanted."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.measurements.tables import DataFolder

Cell: TypeAlias = str | float | None
"""A text, a number, or ``None`` where there is nothing to say."""
TARGETS: dict[str, str] = {
    "step_time": "gpusage_lab.learning.step_time",
    "intervals": "gpusage_lab.published.intervals",
    "memory": "gpusage_lab.learning.memory",
    "activity": "gpusage_lab.learning.activity",
    "colocation": "gpusage_lab.learning.colocation",
    "slowdown": "gpusage_lab.learning.slowdown",
}
"""Each target's module; add yours here. It has `fit` and `evaluate` as `Target` says."""
SCORED_ALONE = {"published": "gpusage_lab.published.comparison"}
"""Modules that have `evaluate` alone, and are scored only where somebody names them: nothing is fitted there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """One table of an evaluation."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


class Scored(Protocol):
    """What a module of `SCORED_ALONE` offers."""

    def evaluate(self, data: DataFolder) -> Sequence[ScoreTable]:
        """Score, on splits that do not leak, with the baselines beside."""
        ...


class Target(Scored, Protocol):
    """What a target's module offers."""

    def fit(self, data: DataFolder) -> Sequence[Artifact]:
        """Fit everything that is shipped, on all rows whose licence allows it; seeded."""
        ...


def target(name: str) -> Target:
    """Return the module of the target *name*, one of `TARGETS`."""
    return cast("Target", importlib.import_module(TARGETS[name]))


def scored(name: str) -> Scored:
    """Return the module of *name*, a target or one that is scored alone."""
    return cast("Scored", importlib.import_module((TARGETS | SCORED_ALONE)[name]))
