"""The target ``slowdown``: how far the truth lies from what a part of a GPU is predicted to cost.

The point is a ratio of the kernels' predicted times (`gpusage.predictors.sharing.slowdown`). Learned are how many
blocks fill a GPU, how a known step time is weighed, and the width of the point's interval:
in the worst of the sources 90 % of the measurements lie inside, and 5 % above, for a promise rests on the upper end.
The rule by which all is in proportion is fitted on the same rows; it is shipped for what nobody measured.

The number of blocks serves the families best, each counted alike; what is expected of a host serves the worst of the
sources, against its goal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import hypot
from types import MappingProxyType

import numpy as np

from gpusage.predictors.arrays import FloatArray, IntArray
from gpusage.predictors.artifacts import (
    BusyShareEvidence,
    Card,
    HostUncertainty,
    SlowdownParameters,
    SlowdownRule,
    pretrained,
)
from gpusage.predictors.sharing.host import gpu_time_shares
from gpusage.predictors.sharing.slowdown import points, share_interval, slowdowns
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.scores import score
from gpusage_lab.learning.slowdown_partners import fitted_partners, partners_rows, partners_table
from gpusage_lab.learning.slowdown_rows import (
    FILES,
    MISO,
    PARVAGPU,
    RAPP,
    SlowdownColumns,
    SlowdownRow,
    slowdown_rows,
    with_predictions,
)
from gpusage_lab.learning.splits import LEAST_GROUPS, by_group, check_enough
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.zoo import Zoo, load_zoo

GOALS = MappingProxyType({RAPP: 0.15, PARVAGPU: 0.12, MISO: 0.12})
"""The mean error that is wanted of each source with the step time known."""
LAUNCHES_S = (40e-6, 50e-6, 60e-6, 70e-6, 80e-6, 100e-6, 120e-6)
HOSTS = (0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


def fitted_filling(columns: SlowdownColumns, train: IntArray) -> float | None:
    """Return the blocks per SM with the least mean error; ``None`` where everything is in proportion.

    Each family of each source counts alike, and each number of blocks with the host that suits it best: RaPP's largest
    families would decide otherwise, or MISO's two models.
    """
    weighed = [columns.with_step_time_weight(host).by_step_time[train] for host in _hosts()]
    families = np.array([f"{row.source} {row.family}" for row in columns.rows])[train]
    members = [families == family for family in np.unique(families)]

    def error(blocks: float) -> float:
        growth, measured = columns.growth_by_filling[blocks][train], columns.measured[train]
        errors = np.abs(np.array([points(working, growth) for working in weighed]) / measured - 1.0)
        return float(np.mean([errors[:, of_it].mean(axis=1) for of_it in members], axis=0).min())

    return min(columns.growth_by_filling, key=error, default=None)


def fitted_host(columns: SlowdownColumns, train: IntArray) -> HostUncertainty:
    """Return what makes the worst error of a source, against its goal, the smallest on the rows *train*."""
    return min(_hosts(), key=lambda doubt: _worst(columns, train, doubt))


def _hosts() -> list[HostUncertainty]:
    own = own_deviation()
    return [HostUncertainty(launch_s=launch_s, host=host, own=own) for launch_s, host in product(LAUNCHES_S, HOSTS)]


def own_deviation() -> float:
    """Return the standard deviation of the GPU's own time: how far 90 % of unseen steps lie, for tails are long."""
    deviations = pretrained().step_time.deviations
    return hypot(deviations.known, deviations.unseen_gpu)


def _worst(columns: SlowdownColumns, train: IntArray, doubt: HostUncertainty) -> float:
    working = gpu_time_shares(columns.busy_s[train], columns.alone_s[train], columns.kernel_count[train], doubt)
    errors = np.abs(points(working, columns.growth[train]) / columns.measured[train] - 1.0)
    sources = columns.source[train]
    return max(float(errors[sources == source].mean()) / GOALS[source] for source in np.unique(sources))


FOLDS = 10
COVERAGE = 0.90
BEYOND = 0.05
"""Of the rows of each source: inside the interval, and beyond either end."""
GROWTHS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
NOISES = (0.04, 0.06, 0.08, 0.10, 0.12)
WORKINGS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0)
_DIGITS = 9
"""Two parts of the rows that differ by less are alike."""
_ALIKE = [(each, each) for each in range(len(WORKINGS))]
"""Both ends as far from the point."""
EVIDENCE: tuple[BusyShareEvidence, ...] = ("graph", "step_time", "utilization")
_WORDS = {"graph": "from the graph alone", "step_time": "step time known", "utilization": "utilization known"}

_IN_PROPORTION = "gpusage, in proportion, step time known"


def fit(data: DataFolder) -> Sequence[Artifact]:
    """Fit the widths on every row, and what partners add."""
    zoo = load_zoo()
    columns = columns_of(data, zoo)
    everything = np.arange(len(columns.rows))
    eager, proportional = fitted_on(columns, everything), fitted_on(columns.in_proportion(), everything)
    rules = [replace(rule, partners=fitted_partners(partners_rows(data, zoo, rule))) for rule in (eager, proportional)]
    parameters = SlowdownParameters(eager=rules[0], proportional=rules[1])
    return [_artifact(columns, parameters, held_out(columns))]


def evaluate(data: DataFolder) -> Sequence[ScoreTable]:
    """Score each source by what is known, with plainer rules beside; widths are of other families."""
    return evaluate_with(data, load_zoo())


def evaluate_with(data: DataFolder, zoo: Zoo) -> Sequence[ScoreTable]:
    """Do as `evaluate` with the cards of *zoo*."""
    columns = columns_of(data, zoo)
    return tables_of(columns, held_out(columns), data, zoo)


def tables_of(
    columns: SlowdownColumns, predicted: Mapping[BusyShareEvidence, FloatArray], data: DataFolder, zoo: Zoo
) -> Sequence[ScoreTable]:
    """Score what is *predicted* of *columns*, one table a source, and what partners add."""
    fitted = fitted_on(columns, np.arange(len(columns.rows)))
    proportional = held_out(columns.in_proportion())["step_time"]
    tables = [_table(columns, source, predicted, proportional) for source in FILES]
    partner_rows = partners_rows(data, zoo, fitted)
    return [*tables, partners_table(partner_rows)] if partner_rows else tables


def columns_of(data: DataFolder, zoo: Zoo) -> SlowdownColumns:
    """Return every measurement of *data* whose model *zoo* has, with what is predicted of it."""
    rows = slowdown_rows(data, zoo)
    check_enough([row.family for row in rows], "families")
    return with_predictions(rows, zoo)


def fitted_on(columns: SlowdownColumns, train: IntArray) -> SlowdownRule:
    """Return the narrowest widths at which 90 % of the rows *train* lie inside, whatever is known of the job.

    First, how many blocks fill a GPU and how a known step time is weighed are fitted on the same rows.
    What a share does to the GPU's own time, and noise, are fitted where the step time is known; then, for each kind of
    knowledge, how far the part of the step that the GPU works may lie from what is known.
    """
    filling_blocks = fitted_filling(columns, train)
    columns = columns.filled(filling_blocks)
    host = fitted_host(columns, train)
    columns = columns.with_step_time_weight(host)
    plain = SlowdownRule(growth=0.0, noise=0.0, working={}, host=host, filling_blocks=filling_blocks)
    tried = (replace(plain, growth=growth, noise=noise) for growth, noise in product(GROWTHS, NOISES))
    common = _narrowest(columns, train, "step_time", tried)
    working = dict(common.working)
    for evidence in EVIDENCE:
        if evidence not in working and _family_count(columns, train, evidence) >= LEAST_GROUPS:
            working |= _narrowest(columns, train, evidence, [common]).working
    return replace(common, working={evidence: working.get(evidence, working["step_time"]) for evidence in EVIDENCE})


def _family_count(columns: SlowdownColumns, train: IntArray, evidence: BusyShareEvidence) -> int:
    """Return of how many families the rows with *evidence* are: one alone tells nothing of others."""
    return len({columns.rows[row].family for row in train if np.isfinite(columns.working(evidence)[row])})


def _narrowest(
    columns: SlowdownColumns, train: IntArray, evidence: BusyShareEvidence, tried: Iterable[SlowdownRule]
) -> SlowdownRule:
    """Return the best of *tried*, with how far the part of the step that the GPU works lies from what *evidence* says.

    The best has the worst source miss 90 % inside, or 5 % beyond an end, by the least, and then the least mean width.
    No row is both below and above: low ends and high ends are predicted once each, and paired then. Where everything is
    in proportion, a known step time's ends lie alike far from the point: its narrowest hold less of an unseen family.
    """
    known = train[np.isfinite(columns.working(evidence)[train])]
    measured, sources = columns.measured[known], columns.source[known]
    means = np.array([(sources == source) / (sources == source).sum() for source in np.unique(sources)])

    def paired(each: SlowdownRule) -> tuple[float, float, SlowdownRule]:
        both = [replace(each, working={evidence: (end, end)}) for end in WORKINGS]
        ends = np.array([_predicted(columns, evidence, one, known) for one in both])
        low, high = ends[:, 0], ends[:, 2]
        below, above = means @ (low > measured).T, means @ (high < measured).T
        lows, highs = ((means @ np.log(side).T).sum(axis=0) for side in (low, high))
        outside = below[:, :, np.newaxis] + above[:, np.newaxis] - (1.0 - COVERAGE)
        beyond = np.maximum(below[:, :, np.newaxis], above[:, np.newaxis]) - BEYOND
        missed = np.maximum(outside, beyond).max(axis=0).clip(min=0.0).round(_DIGITS)
        pairs = np.ndindex(missed.shape) if columns.growth_by_filling or evidence != "step_time" else _ALIKE
        down, up = min(pairs, key=lambda pair: (missed[pair], highs[pair[1]] - lows[pair[0]]))
        chosen = replace(each, working={evidence: (WORKINGS[down], WORKINGS[up])})
        return float(missed[down, up]), float(highs[up] - lows[down]), chosen

    return min(map(paired, tried), key=lambda best: best[:2])[2]


def _predicted(
    columns: SlowdownColumns, evidence: BusyShareEvidence, deviations: SlowdownRule, which: IntArray
) -> FloatArray:
    working = share_interval(columns.working(evidence)[which], evidence, deviations)
    return slowdowns(working, columns.growth[which], deviations)


def held_out(columns: SlowdownColumns) -> dict[BusyShareEvidence, FloatArray]:
    """Return low end, point and high end of each row by what is known, the widths of other families; else NaN."""
    predicted = {evidence: np.full((3, len(columns.rows)), np.nan) for evidence in EVIDENCE}
    for fold in by_group([row.family for row in columns.rows], FOLDS, "family"):
        fitted = fitted_on(columns, fold.train)
        weighed = columns.filled(fitted.filling_blocks).with_step_time_weight(fitted.host)
        for evidence, ends in predicted.items():
            ends[:, fold.test] = _predicted(weighed, evidence, fitted, fold.test)
    return predicted


def baselines(columns: SlowdownColumns) -> Iterator[tuple[str, FloatArray]]:
    """Yield plainer rules by name, and what each says of every row."""
    part = np.array([row.part for row in columns.rows])
    yield "no slowdown", np.ones(len(part))
    yield "in proportion to the SMs", 1.0 / part
    yield "by predicted SM activity", np.maximum(columns.sm_activity / part, 1.0)


_COLUMNS = ("predictor", "rows", "MAPE %", "median %", "bias %", "coverage %", "high/low")


def _table(
    columns: SlowdownColumns, source: str, predicted: Mapping[BusyShareEvidence, FloatArray], proportional: FloatArray
) -> ScoreTable:
    """Return the scores of *predicted*, and of what would be predicted if everything were *proportional*."""
    measured, of_source = columns.measured, columns.source == source
    lines: list[tuple[str | float | None, ...]] = []
    named = {f"gpusage, {_WORDS[evidence]}": ends for evidence, ends in predicted.items()}
    for name, ends in (named | {_IN_PROPORTION: proportional}).items():
        which = of_source & np.isfinite(ends[1])
        if which.any():
            low, point, high = ends[:, which]
            scored = score(measured[which], point, low, high)
            cells = (scored.mape, scored.median, scored.bias, scored.coverage or 0.0)
            lines.append((name, scored.row_count, *(100 * cell for cell in cells), scored.width))
    for name, point in baselines(columns):
        scored = score(measured[of_source], point[of_source])
        errors = (scored.mape, scored.median, scored.bias)
        lines.append((name, scored.row_count, *(100 * error for error in errors), None, None))
    return ScoreTable(
        title=f"Slowdown on a part of a GPU: {source}",
        columns=_COLUMNS,
        rows=tuple(lines),
        notes=(f"Goal with the step time known: <= {100 * GOALS[source]:.0f} %; coverage 85 to 95.",),
    )


def _range(rows: Sequence[SlowdownRow], figure: Callable[[SlowdownRow], float]) -> tuple[float, float]:
    """Return the least and the greatest *figure* of *rows*."""
    figures = [figure(row) for row in rows]
    return float(min(figures)), float(max(figures))


def _errors(measured: FloatArray, held_out: Mapping[BusyShareEvidence, FloatArray]) -> dict[str, float]:
    """Return the error and the coverage of what is predicted of families that were *held_out*, by what is known."""
    errors = {}
    for evidence, ends in held_out.items():
        which = np.isfinite(ends[1])
        low, point, high = ends[:, which]
        scored = score(measured[which], point, low, high)
        errors[f"unseen family, {_WORDS[evidence]}, MAPE"] = scored.mape
        errors[f"unseen family, {_WORDS[evidence]}, inside the interval"] = scored.coverage or 0.0
    return errors


def _artifact(
    columns: SlowdownColumns, parameters: SlowdownParameters, held_out: Mapping[BusyShareEvidence, FloatArray]
) -> Artifact:
    counts = {source: sum(row.source == source for row in columns.rows) for source in FILES}
    return Artifact(
        name="slowdown",
        card=Card(
            purpose="When a kernel fills a GPU, and what is expected of hosts; how far the truth lies from the "
            "predicted slowdown of a job on a part of a GPU, alone there; and by which power of the number of jobs on "
            "the GPU its own time grows.",
            fitted_on=tuple(f"{source}: {count} rows" for source, count in counts.items()),
            licences=("RaPP: Apache-2.0", "ParvaGPU: MIT", "MISO: MIT"),
            ranges={
                "batch_size": _range(columns.rows, lambda row: row.workload.batch_size),
                "part_of_the_gpu": _range(columns.rows, lambda row: row.part),
            },
            errors=_errors(columns.measured, held_out),
            notes=(
                "Eager: the number of blocks that fill a GPU errs least for the families, each counted alike.",
                "Proportional: fitted on the same rows, for what no row shows: engines, compilers and text generation.",
                "How a known step time is weighed between host and GPU: for the worst source against its goal.",
                "Partners: equal processes without percentages (ParvaGPU), priced by either rule.",
            ),
        ),
        parameters=parameters,
    )
