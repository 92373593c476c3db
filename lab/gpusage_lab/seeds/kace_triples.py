"""KACE's look ahead: three workloads on one GPU, where `gpusage profile` has measured triples.

A target is given, and two of the others are to be chosen: the % of Oracle is over the triples that were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpusage.decisions.advisor import make_advisor
from gpusage.predictors.sharing.colocation import features_of, predict_colocation
from gpusage_hooks.types import Gpu, GpuNeed
from gpusage_lab.learning.profiled import ProfiledRun, profiled
from gpusage_lab.learning.profiled_pairs import WHOLE_PERCENT
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
THREE = 3
LEAST_TRIPLES = 4
AMOUNTS, SHARES = (0, 4, 5), (1, 2, 3)
"""As in `gpusage_lab.seeds.kace`."""


class Triples(NamedTuple):
    """Measured triples: which jobs, and the sum of their throughputs, each relative to running alone."""

    models: tuple[str, ...]
    needs: tuple[GpuNeed, ...]
    members: npt.NDArray[np.int64]
    sums: FloatArray
    gpu: Gpu


Say = Callable[[Triples, BoolArray], FloatArray]
"""(triples, which of them train) -> how good each triple would be."""


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return a table a campaign that has triples enough."""
    runs = [run for run in profiled(data).runs if run.sharing == "mps" and run.figures.get("steps_per_s")]
    campaigns = {name: list(members) for name, members in groupby(runs, key=lambda run: run.campaign)}
    triples_by_campaign = {name: triples_of(members) for name, members in campaigns.items()}
    return [_table(name, triples) for name, triples in triples_by_campaign.items() if triples is not None]


def triples_of(runs: Sequence[ProfiledRun]) -> Triples | None:
    """Return the triples of *runs* whose three jobs differ and were measured alone under MPS as well."""
    alone = {
        run.job: run.figures["steps_per_s"]
        for run in runs
        if run.kind == "share" and run.figures.get("thread_percent") == WHOLE_PERCENT
    }
    sides = [list(side) for _, side in groupby((run for run in runs if run.kind == "triple"), key=lambda run: run.item)]
    whole = [three for three in sides if len({run.job for run in three if run.job in alone}) == THREE == len(three)]
    jobs = {run.job: run for three in whole for run in three}
    if len(whole) < LEAST_TRIPLES:
        return None
    places = {job: place for place, job in enumerate(sorted(jobs))}
    ordered, advisor = [jobs[job] for job in places], make_advisor()
    return Triples(
        models=tuple(run.key for run in ordered),
        needs=tuple(advisor.predict(run.graph, run.workload, [run.gpu])[0] for run in ordered),
        members=np.array([[places[run.job] for run in three] for three in whole]),
        sums=np.array([sum(run.figures["steps_per_s"] / alone[run.job] for run in three) for three in whole]),
        gpu=ordered[0].gpu,
    )


def linear(triples: Triples, train_mask: BoolArray) -> FloatArray:
    """Return what KACE's regression on aggregated features says; the mean if there are too few training triples."""
    rows = _aggregate_features(triples)
    if train_mask.sum() <= rows.shape[1]:
        return np.full(len(rows), float(triples.sums[train_mask].mean()) if train_mask.any() else 0.0)
    weights, *_ = np.linalg.lstsq(rows[train_mask], triples.sums[train_mask], rcond=None)
    return np.asarray(rows @ weights)


def ours(triples: Triples, _: BoolArray) -> FloatArray:
    """Return the predictions of the shipped predictor, which was fitted on no triple."""
    predictions = (predict_colocation([triples.needs[job] for job in three], triples.gpu) for three in triples.members)
    return np.array([one.throughput_sum.value for one in predictions])


def reached(triples: Triples, say: Say) -> FloatArray:
    """Return each target's % of Oracle; triples with the target's model are held out. One triple is no choice."""
    models, result = np.array(triples.models), []
    for target in range(len(models)):
        own = np.flatnonzero((triples.members == target).any(axis=1))
        if len(own) > 1:
            train_mask = ~(models[triples.members] == models[target]).any(axis=1)
            best = own[say(triples, train_mask)[own].argmax()]
            result.append(100.0 * triples.sums[best] / triples.sums[own].max())
    return np.array(result)


def _by_chance(triples: Triples) -> FloatArray:
    with_target = [triples.sums[(triples.members == job).any(axis=1)] for job in range(len(triples.models))]
    return np.array([100.0 * sums.mean() / sums.max() for sums in with_target if len(sums) > 1])


def _aggregate_features(triples: Triples) -> FloatArray:
    features = features_of(triples.needs)[triples.members]
    amounts = np.log(np.exp(features[:, :, AMOUNTS]).sum(axis=1))
    return np.concatenate([amounts, features[:, :, SHARES].mean(axis=1), np.ones((len(features), 1))], axis=1)


def _table(campaign: str, triples: Triples) -> ScoreTable:
    rules: dict[str, Say] = {
        "MEMCAP (least memory)": lambda pairs, _: -_aggregate_features(pairs)[:, 2],
        "SM% (highest)": lambda pairs, _: _aggregate_features(pairs)[:, 4],
        "MEM% (lowest)": lambda pairs, _: -_aggregate_features(pairs)[:, 5],
        "KACE: linear regression": linear,
        "ours as shipped": ours,
    }
    rows: list[tuple[str | float | None, ...]] = [("random (mean of all)", float(_by_chance(triples).mean()), None)]
    for name, say in rules.items():
        shares = reached(triples, say)
        rows.append((name, float(shares.mean()), float(shares.min())))
    return ScoreTable(
        title=f"KACE: % of Oracle, triples of the campaign {campaign}, target's model held out",
        columns=("policy", "% of Oracle", "worst target"),
        rows=tuple(rows),
        notes=(f"{len(triples.sums)} triples of {len(triples.models)} jobs under MPS, every job with all SMs.",),
    )
