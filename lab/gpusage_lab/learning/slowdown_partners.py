"""What equal partners add to a price: ParvaGPU's processes side by side, against one alone on its part of the GPU.

The processes had no percentages: each could use what the others left, and met them wherever it went. The price has a
part's own bandwidth, which says the most of it: two jobs with 50 % each (inference on a V100, kept-away measurements)
paid 5 to 12 % for a partner, where the bandwidth alone gives ResNet-50 18 % and AlexNet 8 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue, part_of
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import FloatArray, IntArray
from gpusage.predictors.artifacts import SlowdownRule, Span
from gpusage.predictors.sharing.colocation import apply_partners
from gpusage.predictors.sharing.host import gpu_time_shares
from gpusage.predictors.sharing.slowdown import growths_with, share_interval, slowdowns
from gpusage.predictors.times.efficiency import KERNEL_COUNT
from gpusage_hooks.types import Interval, Workload
from gpusage_lab.learning.scores import score
from gpusage_lab.learning.slowdown_rows import PARVAGPU, PARVAGPU_NAMES, slice_of
from gpusage_lab.learning.splits import family_of, leave_one_out
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.zoo import Zoo

POWERS = np.arange(0.0, 0.41, 0.01)
BAD_SHARE = 0.95
"""Of the measurements are no slower than beside bad partners."""
BOUND = 0.8
"""A job whose price is at least this part of the number of jobs is decided by the GPU: its price is known best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnersRow:
    """Equal processes on one GPU.

    Attributes:
        jobs: How many.
        price: Predicted for one of them alone on its part of the GPU, the step time alone on the whole one known.
        slowdown: Measured: a step among the others over a step alone on the whole GPU.
    """

    family: str
    jobs: int
    price: Interval
    slowdown: float


def partners_rows(data: DataFolder, zoo: Zoo, deviations: SlowdownRule) -> tuple[PartnersRow, ...]:
    """Return the rows of more than one process whose model the zoo has, priced with *deviations*."""
    return tuple(_rows(data, zoo, deviations))


def fitted_partners(rows: Sequence[PartnersRow]) -> Span:
    """Return the power that errs least, and the one that leaves 5 % of the rows that the GPU decides above.

    Without rows nothing is learned: partners add nothing.
    """
    if not rows:
        return 0.0, 0.0
    measured = np.array([row.slowdown for row in rows])
    average = min(POWERS, key=lambda power: score(measured, _points(rows, float(power))).mape)
    decided = [row for row in rows if row.price.value >= BOUND * row.jobs] or rows
    above = np.array([row.slowdown for row in decided])
    enough = [power for power in POWERS if (above <= _points(decided, float(power))).mean() >= BAD_SHARE]
    return float(average), float(max(min(enough, default=POWERS[-1]), average))


def partners_table(rows: Sequence[PartnersRow]) -> ScoreTable:
    """Score the law by the number of jobs, its powers of other families, with plainer rules beside."""
    measured = np.array([row.slowdown for row in rows])
    ends = np.empty((3, len(rows)))
    for fold in leave_one_out([row.family for row in rows], "family"):
        learned = fitted_partners([rows[index] for index in fold.train])
        ends[:, fold.test] = _ends([rows[index] for index in fold.test], learned)
    jobs = np.array([row.jobs for row in rows])
    lines = [
        _line(f"gpusage, {count} jobs", measured, ends, np.flatnonzero(jobs == count)) for count in sorted({*jobs})
    ]
    for name, points in (("price alone", _points(rows, 0.0)), ("in proportion to the jobs", jobs.astype(float))):
        scored = score(measured, points)
        lines.append((name, scored.row_count, 100 * scored.mape, 100 * scored.median, 100 * scored.bias, None, None))
    return ScoreTable(
        title=f"Slowdown beside equal partners: {PARVAGPU}",
        columns=("predictor", "rows", "MAPE %", "median %", "bias %", "coverage %", "high/low"),
        rows=tuple(lines),
        notes=("Processes without percentages; the price of one alone on its part, step time known, is predicted.",),
    )


def _rows(data: DataFolder, zoo: Zoo, deviations: SlowdownRule) -> Iterator[PartnersRow]:
    gpu = builtin_catalogue().find("a100-sxm4-80gb")
    table = data.read(PARVAGPU)
    table = table[table["throughput_samples_per_s"] > 0]
    rates = table.set_index(["model", "batch_size", "mig_slices", "process_count"])[
        "throughput_samples_per_s"
    ].to_dict()
    for (model, batch_size, slices, jobs), rate in rates.items():
        name, alone = PARVAGPU_NAMES.get(model, model), rates.get((model, batch_size, slices, 1))
        if jobs == 1 or alone is None or f"torchvision:{name}@224" not in zoo:
            continue
        whole, workload = slice_of(gpu, slices), Workload(batch_size=int(batch_size), mode="infer")
        analysis = WorkloadAnalysis(zoo.graph(f"torchvision:{name}@224"), workload)
        timing = analysis.timing([whole])
        growth = growths_with(deviations.filling_blocks, analysis, [whole], [[part_of(whole, 1 / jobs)]])
        alone_s, count = np.array([batch_size / alone]), np.exp(timing.features[:, KERNEL_COUNT])
        working = share_interval(
            gpu_time_shares(timing.busy_s, alone_s, count, deviations.host), "step_time", deviations
        )
        low, value, high = slowdowns(working, growth, deviations)[:, 0].tolist()
        price = Interval(value=value, low=low, high=high)
        # The rate is of one process.
        yield PartnersRow(family=family_of(name), jobs=int(jobs), price=price, slowdown=max(alone / rate, 1.0))


def _points(rows: Sequence[PartnersRow], power: float) -> FloatArray:
    points: FloatArray
    _, points, _ = _ends(rows, (power, power))
    return points


def _ends(rows: Sequence[PartnersRow], learned: Span) -> FloatArray:
    intervals = [apply_partners(row.price, row.jobs, learned) for row in rows]
    ends: FloatArray = np.array([[each.low, each.value, each.high] for each in intervals]).T
    return ends


def _line(name: str, measured: FloatArray, ends: FloatArray, which: IntArray) -> tuple[str | float | None, ...]:
    low, point, high = ends[:, which]
    scored = score(measured[which], point, low, high)
    cells = (scored.mape, scored.median, scored.bias, scored.coverage or 0.0)
    return (name, scored.row_count, *(100 * cell for cell in cells), scored.width)
