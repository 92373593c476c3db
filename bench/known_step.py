"""What a step that is known on one GPU makes of the prediction on others, in the public record.

Pairs are published rows of one source, release, model and workload on two GPUs, or of two batches on one. Nothing is
fitted on them but the engines' constants. Beside ours: nothing known, and the plain factor, measured over predicted.

Example: python bench/known_step.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, permutations
from typing import NamedTuple

import numpy as np

from gpusage.decisions.advisor import Advisor, make_advisor
from gpusage_hooks.types import SoloRun
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.comparison import Compared, compare, is_of_slow_t4
from gpusage_lab.published.rows import LANGUAGE, VISION
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import Zoo, load_zoo

LEAST_PAIRS = 10
BATCH = ("another batch, all others", "another batch, all engines")
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
    """Yield each two of *rows*, of one model and its settings, on different GPUs or of different batches."""
    graph = zoo.graph(rows[0].run.key)
    for one, other in permutations(rows, 2):
        workload, batch_size = other.run.workload, one.run.workload.batch_size
        if (workload.batch_size != batch_size) == (other.run.gpu != one.run.gpu):
            continue
        (there,) = advisor.predict(graph, one.run.workload, [one.run.gpu])
        run = SoloRun(step_time_s=there.step_time_s.value / one.ratio, gpu=there.gpu, step_batch_size=batch_size)
        runs = workload, replace(workload, alone=run)
        before, after = (advisor.predict(graph, each, [other.run.gpu])[0].step_time_s for each in runs)
        measured_s = before.value / other.ratio
        yield Pair(
            kind=BATCH[one.run.group.endswith("engine")] if other.run.gpu == one.run.gpu else one.run.group,
            alone=other.ratio,
            known=after.value / measured_s,
            plain=other.ratio / one.ratio,
            is_inside=after.low <= measured_s <= after.high,
            before=before.high / before.low,
            after=after.high / after.low,
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

    def run_of(one: Compared) -> str:
        row = one.run.row
        return repr((one.run.key, replace(one.run.workload, batch_size=1), row.source, row.framework, row.metric))

    groups, advisor = groupby(sorted(rows, key=run_of), key=run_of), make_advisor()
    pairs = [pair for _, each in groups for pair in _pairs_of(list(each), zoo, advisor)]
    kinds = {kind: [pair for pair in pairs if pair.kind == kind] for kind in sorted({pair.kind for pair in pairs})}
    engines = [pair for pair in pairs if pair.kind.endswith("engine")]
    others = [pair for pair in pairs if pair.kind not in BATCH and pair not in engines]
    lines = [_line(kind, each) for kind, each in kinds.items() if len(each) >= LEAST_PAIRS]
    lines += [_line("all engines", engines), _line("all others", others)]
    title = "A step known on another GPU: the public record, median factors"
    return [ScoreTable(title=title, columns=HEAD, rows=tuple(lines))]


main = command_of("known_step", tables, (VISION, LANGUAGE))

if __name__ == "__main__":
    main()
