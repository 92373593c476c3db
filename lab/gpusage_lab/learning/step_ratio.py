"""How far ratios of two GPUs' predictions miss: less than either, as a model's own error is in both.

Pairs are rows of one model and workload on two GPUs, measured in one campaign or, for NeuSight, with one code.
torchvision's are left out here and scored apart: each of its GPUs sat in another host.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from gpusage.predictors.artifacts import StepTimeDeviations
from gpusage_lab.learning.step_flat import Array
from gpusage_lab.learning.step_residual import own_parts
from gpusage_lab.learning.step_rows import StepRow
from gpusage_lab.learning.step_samples import Measurements, family_folds
from gpusage_lab.learning.targets import Cell, ScoreTable

COVERED = 0.90
"""Of the rows lie inside an interval."""
MOST_SHARED = 0.95
LEFT_OUT = "torchvision"
KINDS = ("two GPUs with parts of their own", "two measured GPUs", "one GPU unseen")


class StepPairs(NamedTuple):
    """Pairs of rows: their numbers, which of `KINDS` they are, and how far both intervals reach.

    Attributes:
        missed: How far the ratio's logarithm misses, without a sign.
    """

    rows: Array
    kind: Array
    reach: Array
    missed: Array

    def covered(self, shared: dict[str, float]) -> Array:
        """Return whether the truth lies inside the ratio's interval."""
        part = np.where(self.kind == 0, shared["shared_own"], shared["shared"])
        squares = np.square(self.reach).sum(axis=1) - 2.0 * part * np.square(self.reach.min(axis=1))
        inside: Array = np.square(self.missed) <= squares
        return inside


def pairs_of(
    measurements: Measurements, unseen_family: Array, unseen_gpu: Array, known: StepTimeDeviations
) -> StepPairs:
    """Return the pairs of rows, as predicted where their family was unseen; once more where one GPU was as well."""
    measured = np.log(measurements.measured_s)
    same_gpu, unseen = np.log(unseen_family[:, 0]) - measured, np.log(unseen_gpu[:, 0]) - measured
    reach_seen = np.hypot(known.known, known.short * unseen_family[:, 2])
    reach_unseen = np.sqrt(known.known**2 + known.unseen_gpu**2 + np.square(known.short * unseen_gpu[:, 2]))
    both = _matched(measurements.rows)
    first, second = both[:, 0], both[:, 1]
    gpus = [row.gpu.name for row in measurements.rows]
    has_part = np.isin(gpus, own_parts(gpus))
    parts = [(both, np.where(has_part[first] & has_part[second], 0, 1), same_gpu[second], reach_seen[second])]
    parts.append((both, np.full(len(both), 2), unseen[second], reach_unseen[second]))
    return StepPairs(
        rows=np.concatenate([part[0] for part in parts]),
        kind=np.concatenate([part[1] for part in parts]),
        reach=np.concatenate([np.column_stack([reach_seen[first], part[3]]) for part in parts]),
        missed=np.concatenate([np.abs(same_gpu[first] - part[2]) for part in parts]),
    )


def ratio_table(measurements: Measurements, pairs: StepPairs) -> ScoreTable:
    """Return how well the intervals of speed-ups cover, their width learned from the other families."""
    inside = np.zeros(len(pairs.kind), dtype=bool)
    for fold in family_folds(measurements):
        tests = np.isin(pairs.rows[:, 0], fold.test)
        training = StepPairs(*(column[~tests] for column in pairs))
        inside[tests] = StepPairs(*(column[tests] for column in pairs)).covered(shared_shares(training))
    rows: list[tuple[Cell, ...]] = []
    for kind, name in enumerate(KINDS):
        chosen = (pairs.kind == kind) & ~np.isnan(pairs.missed)
        if chosen.any():
            alone = np.square(pairs.missed[chosen]) <= np.square(pairs.reach[chosen]).sum(axis=1)
            missed = 100 * np.expm1(pairs.missed[chosen])
            figures = (missed.mean(), np.quantile(missed, COVERED), 100 * inside[chosen].mean(), 100 * alone.mean())
            rows.append((name, int(chosen.sum()), *map(float, figures)))
    return ScoreTable(
        title="Speed-ups: misses and coverage of their 90 % intervals, unseen family",
        columns=("pairs", "n", "mean miss %", "90 % miss less than %", "coverage %", "coverage %, independent errors"),
        rows=tuple(rows),
        notes=("timm and NeuSight; torchvision's GPUs sat in different hosts. Widths by what other folds missed by.",),
    )


def shared_shares(pairs: StepPairs) -> dict[str, float]:
    """Return the share of the smaller error's square that leaves 90 % of the ratios inside, by kind of pair."""
    least = np.square(pairs.reach.min(axis=1))
    most = (np.square(pairs.reach).sum(axis=1) - np.square(pairs.missed)) / (2.0 * least)
    known = ~np.isnan(most)
    own, others = known & (pairs.kind == 0), [known & (pairs.kind == kind) for kind in (1, 2)]
    return {"shared_own": _quantile(most[own]), "shared": min(_quantile(most[item]) for item in others)}


def _quantile(most: Array) -> float:
    return float(np.clip(np.quantile(most, 1.0 - COVERED), 0.0, MOST_SHARED)) if len(most) else 0.0


def _matched(rows: Sequence[StepRow]) -> Array:
    groups: dict[object, list[int]] = {}
    for index, row in enumerate(rows):
        if not row.source.startswith(LEFT_OUT):
            work = row.workload
            size = 0 if row.release else work.batch_size
            key = (row.key, row.source, row.release, work.mode, work.precision, size)
            groups.setdefault(key, []).append(index)
    candidates = [pair for group in groups.values() for pair in combinations(group, 2)]
    return np.array([pair for pair in candidates if rows[pair[0]].gpu.name != rows[pair[1]].gpu.name]).reshape(-1, 2)
