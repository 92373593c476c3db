"""The target ``intervals``: how wide a step time's interval is, by kind of workload, beside what `step_time` fits.

A kind has the conformal quantile of its own rows' misses; one of fewer than `LEAST_ROWS` has that of all kinds whose
names begin like its own. They are the public record, and timm's runs with channels last or a compiler, each predicted
by the fit that has not seen the model's family. Some points were fitted on rows that are scored here: what engines add
to a kernel and reach of the arithmetic, the copies of the cache in transformers, the launches of ``bnb-int8``, and what
a compiler saves. `evaluate` leaves a source out of the width of these, never out of the point. `fit` writes the widths
into the artifact ``step_time``; a folder without such rows leaves what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, exp, log, sqrt
from typing import NamedTuple

import numpy as np

from gpusage.predictors.artifacts import StepTimeDeviations, pretrained
from gpusage.predictors.times.efficiency import with_bounded_gradients, with_compiler
from gpusage.predictors.times.step_time import kind_of
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.step_absolute import left_out_rows
from gpusage_lab.learning.step_ratio import COVERED
from gpusage_lab.learning.step_samples import predicted, sample_of
from gpusage_lab.learning.step_time import NAME, fitted_by_family
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.comparison import compare, is_of_slow_t4
from gpusage_lab.published.rows import LANGUAGE, VISION
from gpusage_planning.zoo import load_zoo

LEAST_ROWS = 60


class Miss(NamedTuple):
    """How far a step time was off, on the logarithmic scale.

    Attributes:
        kind: As `kind_of` gives it.
        group: The family or the source, which is left out together.
        short: `Timing.short_share`; 0 where the miss is to be covered whatever the kernels' length.
    """

    kind: str
    group: str
    miss: float
    short: float = 0.0


def fit(data: DataFolder) -> Sequence[Artifact]:
    """Return the artifact ``step_time`` with the width of each kind that *data* has rows of."""
    parameters, before = pretrained().step_time, pretrained().step_time.deviations
    kinds, settings = (widths([*rows], before) for rows in (_published(data), _of_timm(data)))
    deviations = replace(before, of_kinds={**before.of_kinds, **kinds}, of_settings={**before.of_settings, **settings})
    fitted = replace(parameters, deviations=deviations)
    return [Artifact(name=NAME, card=pretrained().step_time_card, parameters=fitted)]


def evaluate(data: DataFolder) -> Sequence[ScoreTable]:
    """Score each kind by the widths that all other families or sources give it, beside what holds 90 % of its rows."""
    misses = [*_published(data), *_of_timm(data)]
    rows = tuple(_line(kind, misses) for kind in sorted({one.kind for one in misses}))
    columns = ("kind", "rows", "groups", "inside %", "of groups %", "left out", "enough", "high/low")
    title = "Step time: intervals by kind of workload, a source or a family left out"
    return [ScoreTable(title=title, columns=columns, rows=rows)]


def widths(misses: Sequence[Miss], deviations: StepTimeDeviations) -> dict[str, float]:
    """Return each kind's deviation: how far 90 % of the truths lie from the point, less what short kernels explain."""
    result = {}
    for kind in {one.kind for one in misses}:
        words = kind.split(", ")
        beginnings = (", ".join(words[:count]) for count in range(len(words), 0, -1))
        pools = ([one for one in misses if f"{one.kind}, ".startswith(f"{name}, ")] for name in beginnings)
        own = [one for one in misses if one.kind == kind]
        pool = next((each for each in (own, *pools) if len(each) >= LEAST_ROWS), None)
        if pool:
            left = np.array([sqrt(max(one.miss**2 - (deviations.short * one.short) ** 2, 0.0)) for one in pool])
            # The conformal rank: of one more row from where these are from, 90 % lie below it.
            rank = min(ceil((len(left) + 1) * COVERED), len(left))
            result[kind] = float(np.sort(left)[rank - 1])
    return result


def _line(kind: str, misses: Sequence[Miss]) -> tuple[Cell, ...]:
    deviations = pretrained().step_time.deviations
    own = [one for one in misses if one.kind == kind]
    inside, left_out = [], []
    for group in sorted({one.group for one in own}):
        width = widths([one for one in misses if one.group != group], deviations).get(kind, deviations.known)
        rows = np.array([(one.miss, one.short) for one in own if one.group == group])
        left_out.append(np.hypot(width, deviations.short * rows[:, 1]))
        inside.append(rows[:, 0] <= left_out[-1])
    enough = np.quantile([one.miss for one in own], COVERED)
    held = (np.concatenate(inside).mean(), np.mean([each.mean() for each in inside]))
    ends = (np.concatenate(left_out).mean(), enough, widths(misses, deviations).get(kind, deviations.known))
    return (
        kind,
        len(own),
        len(inside),
        *(100 * float(each) for each in held),
        *(exp(2.0 * float(each)) for each in ends),
    )


def _published(data: DataFolder) -> Iterator[Miss]:
    """Yield the misses of the public record; a single GPU's step in PyTorch has the width of the campaigns."""
    if VISION not in data or LANGUAGE not in data:
        return
    for one in compare(data, load_zoo(), lambda run: run.memory is None and not is_of_slow_t4(run.row)).compared:
        kind = kind_of(one.run.workload)
        if kind.startswith(("answer", "pass", "train, several GPUs")):
            yield Miss(kind=kind, group=one.run.row.source, miss=log(one.factor))


def _of_timm(data: DataFolder) -> Iterator[Miss]:
    """Yield the misses of timm's runs with a compiler or with channels last, the family unseen."""
    zoo = load_zoo()
    rows = [row for row in left_out_rows(data, zoo).rows if row.source.endswith(("compiled", "channels last"))]
    if not rows:
        return
    measured, fits = fitted_by_family(data)
    for fold, fitted in fits:
        families, eager = {measured.rows[index].family for index in fold.test}, fitted.efficiency
        for row in (each for each in rows if each.family in families):
            run = replace(row.workload, compile=row.source.endswith("compiled"))
            not_trained = with_compiler(eager) if run.compile else eager
            efficiency = with_bounded_gradients(eager) if run.mode == "train" else not_trained
            sample = sample_of(replace(row, workload=run), zoo)
            (step_s,), (short,) = predicted(replace(fitted, efficiency=efficiency), [sample])
            yield Miss(kind_of(run), row.family, abs(log(step_s / row.measured_s)), short)
