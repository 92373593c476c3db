"""What a step that is known on one GPU makes of the prediction on others, in the public record.

Pairs are published rows of one source, release, model and workload on two GPUs. Nothing is fitted on them but the
engines' constants. Beside ours: nothing known, and the plain factor, measured over predicted.

Example: python bench/known_step.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from gpusage.decisions.advisor import Advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.plugins.loading import make_hooks
from gpusage_hooks.types import SoloRun
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.comparison import Compared, compare, is_of_slow_t4
from gpusage_lab.published.rows import LANGUAGE, VISION
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import Zoo, load_zoo

LEAST_PAIRS = 10
HEAD = ("pairs of", "n", "nothing known", "step known", "plain factor", "inside %", "high/low, before", "after")


class Pair(NamedTuple):
    """One GPU's step, predicted over published: with nothing known, another's step known, and by the plain factor."""

    kind: str
    alone: float
    known: float
    plain: float
    is_inside: bool
    before: float
    after: float


def _pairs_of(rows: list[Compared], zoo: Zoo, advisor: Advisor) -> Iterator[Pair]:
    """Yield each two of *rows*, of one model and workload, on different GPUs."""
    graph, workload, gpus = zoo.graph(rows[0].run.key), rows[0].run.workload, [one.run.gpu for one in rows]
    alone = advisor.predict(graph, workload, gpus)
    for one, there in zip(rows, alone, strict=True):
        run = SoloRun(step_time_s=there.step_time_s.value / one.ratio, gpu=there.gpu)
        needs = advisor.predict(graph, replace(workload, alone=run), gpus)
        for other, before, after in zip(rows, alone, needs, strict=True):
            if before.gpu != there.gpu:
                step, measured_s = after.step_time_s, before.step_time_s.value / other.ratio
                yield Pair(
                    kind=one.run.group,
                    alone=other.ratio,
                    known=step.value / measured_s,
                    plain=other.ratio / one.ratio,
                    is_inside=step.low <= measured_s <= step.high,
                    before=before.step_time_s.high / before.step_time_s.low,
                    after=step.high / step.low,
                )


def _line(name: str, pairs: list[Pair]) -> tuple[Cell, ...]:
    """Return the cells of *pairs*: median factors, which part lies inside, and the median widths."""
    factors = [np.exp(np.median(np.abs(np.log([pair[place] for pair in pairs])))) for place in (1, 2, 3)]
    widths = [np.median([pair[place] for pair in pairs]) for place in (5, 6)]
    inside = 100 * np.mean([pair.is_inside for pair in pairs])
    return name, len(pairs), *(f"{each:.2f}" for each in factors), f"{inside:.0f}", *(f"{each:.1f}" for each in widths)


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return the table of all pairs."""
    zoo = load_zoo()
    # One model on one GPU is compared with the same release, settings and unit alone.
    rows = [one for one in compare(data, zoo).compared if one.run.memory is None and not is_of_slow_t4(one.run.row)]
    by_run = {
        id(one): repr((one.run.key, one.run.workload, one.run.row.source, one.run.row.framework, one.run.row.metric))
        for one in rows
    }
    groups = groupby(sorted(rows, key=lambda one: by_run[id(one)]), key=lambda one: by_run[id(one)])
    advisor = Advisor(hooks=make_hooks(), catalogue=builtin_catalogue())
    pairs = [pair for _, each in groups for pair in _pairs_of(list(each), zoo, advisor)]
    kinds = {kind: [pair for pair in pairs if pair.kind == kind] for kind in sorted({pair.kind for pair in pairs})}
    engines = [pair for pair in pairs if pair.kind.endswith("engine")]
    kinds = {kind: each for kind, each in kinds.items() if len(each) >= LEAST_PAIRS}
    kinds |= {"all engines": engines, "all others": [pair for pair in pairs if pair not in engines]}
    title = "A step known on another GPU: the public record, median factors"
    lines = tuple(_line(kind, each) for kind, each in kinds.items())
    return [ScoreTable(title=title, columns=HEAD, rows=lines)]


main = command_of("known_step", tables, (VISION, LANGUAGE))

if __name__ == "__main__":
    main()
