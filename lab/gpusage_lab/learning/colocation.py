"""Co-location under MPS: fitted on a site's own pairs, else nothing; Gavel's and Lucid's pairs score it.

What one campaign's jobs did to each other holds in no other: there, hosts and loaders decide. So only pairs that
`gpusage profile` measured are in the fit. A few models say little, and whatever was tried on the target's features (the
artifact's card lists it) did no better than to know the partner; so what is learned is each measured job's own effect,
and jobs like it have it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.artifacts import Card, ColocationParameters, pretrained
from gpusage.predictors.intervals import NINETY_PERCENT
from gpusage.predictors.sharing.colocation import (
    LearnedColocation,
    learn_pairs,
    learned_colocation,
    pair_throughputs,
)
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.pairs import (
    GUESSING,
    QUEUE_LENGTH,
    RANKING,
    Pairs,
    Policy,
    activities,
    gavel,
    lucid,
    lucid_step_times,
    lucid_utilizations,
    scores,
    seen_as,
    with_partner_held_out,
)
from gpusage_lab.learning.profiled_pairs import joined, profiled_pairs
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder

NEAR = 0.3
"""Distance, in standard deviations of the features, at which one job says little of another.

Chosen with the form, among 40, on Gavel's K80 and P100, which are scored nowhere else.
"""
SAME_MODEL = 0.95
"""Throughput that two jobs of one model are promised at most where no pair was measured: they wait for the same things.

A judgement: any value from 0.9 to 0.98 chooses alike, between partners that seem equal. Without it, Gavel's jobs whose
step times alone are known reach 79.5 % of Oracle in queues of four, with it 84.2; Lucid's change by 0.1 at most.
"""
PAIR_FOLDS = 5
FEATURES = ("log step s", "utilization", "SM activity", "DRAM activity", "log samples/s", "log bytes")
"""What `gpusage.predictors.sharing.colocation.features_of` returns."""
NOTHING_MEASURED = ColocationParameters(
    features=FEATURES,
    mean=[0.0] * len(FEATURES),
    scale=[1.0] * len(FEATURES),
    jobs=[],
    models=[],
    sensitivity=[],
    pressure=[],
    interaction=[],
    same_model=SAME_MODEL,
    near=NEAR,
)
"""Of a site that has measured no pair: the rule on activities stands alone."""


def fit(data: DataFolder) -> Sequence[Artifact]:
    """Fit on the site's own pairs; the intervals are those of the method on all pairs that ran, Gavel's as well."""
    own = profiled_pairs(data)
    pairs = joined([gavel(data), *own.values()])
    deviations = {split.name: _deviations(pairs, split.chosen_pairs(pairs)) for split in _SPLITS}
    learned = NOTHING_MEASURED
    if own:
        campaigns = joined(list(own.values()))
        learned = _fitted(campaigns, ~np.isnan(campaigns.parts))
    parameters = replace(
        learned,
        known=deviations["known"],
        partly=deviations["partly"],
        unknown=deviations["unknown"],
    )
    ours, rule = scores(pairs, refit_sums), scores(pairs, activities)
    card = Card(
        purpose="Throughput of jobs beside each other on one GPU under MPS, relative to running alone.",
        fitted_on=(
            *(f"profile {name}: {len(campaign.jobs)} jobs" for name, campaign in own.items()),
            "left out: gavel_pairs.csv, simulation_2020, V100, which gives the intervals' widths and the errors",
        ),
        licences=("Gavel: MIT", "gpusage profile: our own"),
        errors={
            "% of Oracle, all candidates, target's model held out, partners measured": ours["all"],
            f"% of Oracle, queues of {QUEUE_LENGTH}, target's model held out, partners measured": ours["queue"],
            "% of Oracle, all candidates, nothing measured": rule["all"],
            f"% of Oracle, queues of {QUEUE_LENGTH}, nothing measured": rule["queue"],
        },
        notes=(*_WHY, "In the source 66 of the 306 pairs are clipped to solo speed; two campaigns differ by 24 %."),
    )
    return (Artifact(name="colocation", card=card, parameters=parameters),)


_WHY = (
    "Ours is the rule on activities with effects of jobs, models and pairs, for a few pairs of a site's own jobs.",
    "Some 70 forms were looked at on these folds: Gaussian processes with interactions, two-resource, monotone laws.",
    "The best of 230 by folds within the training models gave 93.0 and 87.8 % of Oracle: worse than popular partner.",
    "An earlier form, popular partner with likeness to measured jobs, had 94.4 and 91.0 % here.",
    "Effects of one campaign's jobs choose no better in another than the rule from activities: they are not shipped.",
    "Beyond two jobs delays are added, and thread percentages only limit; nothing public tells better.",
    "MISO's mixes of seven name no job and are relative to each job's own best: no slowdown can be read from them.",
)


def evaluate(data: DataFolder) -> Sequence[ScoreTable]:
    """Score every policy on both sources."""
    pairs = gavel(data)
    ours: dict[str, Policy] = {"ours": refit_sums}
    apart = {name: with_partner_held_out(policy) for name, policy in (*GUESSING.items(), ("ours", refit_sums))}
    shown = [
        _table("Gavel 2020, V100, MPS", pairs, {**RANKING, **GUESSING, **ours}, _WHY),
        _table("Gavel 2020, V100, MPS, the partner's model held out too", pairs, {**RANKING, **apart}),
        _coverage(pairs),
    ]
    if "lucid_pairs.csv" in data:
        policies: dict[str, Policy] = {
            "ours, fitted on Lucid's other models": refit_sums,
            "ours, as shipped": as_shipped,
        }
        if "lucid_solo.csv" in data:
            for figure, alone in (("utilizations", lucid_utilizations(data)), ("step times", lucid_step_times(data))):
                policies[f"ours, as shipped, {figure} alone known"] = seen_as(lucid(data, alone), as_shipped)
        title = "Lucid, RTX 3090, time slicing; nothing that is shipped was fitted on it"
        shown.append(_table(title, lucid(data), {**RANKING, **GUESSING, **policies}))
    own = {name: campaign for name, campaign in profiled_pairs(data).items() if len(campaign.jobs) > QUEUE_LENGTH}
    policies = {**RANKING, **GUESSING, "ours": refit_sums}
    shown += [_table(f"gpusage profile, {name}, MPS", campaign, policies) for name, campaign in own.items()]
    return shown


def _table(title: str, pairs: Pairs, policies: Mapping[str, Policy], notes: tuple[str, ...] = ()) -> ScoreTable:
    figures_by_policy = {name: scores(pairs, policy) for name, policy in policies.items()}
    measured = ~np.isnan(pairs.sums)
    counted = f"{len(pairs.jobs)} targets, {int(measured.sum() / 2)} pairs, {len(pairs.failed)} more failed."
    return ScoreTable(
        title=f"Co-location, target's model held out: {title}",
        columns=("policy", "% of Oracle, all", f"% of Oracle, queue of {QUEUE_LENGTH}", "MAPE %", "rank correlation"),
        rows=tuple(
            (name, of["all"], of["queue"], None if name in RANKING else of["error"], of["rank"])
            for name, of in figures_by_policy.items()
        ),
        notes=(counted, *notes),
    )


def refit_sums(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
    """Return what ours says of each job as the target's partner, fitted on the training jobs alone."""
    return np.asarray(_sums_of_training_jobs(pairs, train_mask.tobytes())[target])


@lru_cache(maxsize=2)  # the targets of one model follow each other, and have the same training jobs
def _sums_of_training_jobs(pairs: Pairs, train_mask: bytes) -> FloatArray:
    mask = np.frombuffer(train_mask, dtype=np.bool_)
    return sums_by_pairs(pairs, ~np.isnan(pairs.parts) & mask[:, np.newaxis] & mask)


def sums_by_pairs(pairs: Pairs, chosen: BoolArray) -> FloatArray:
    """Return the predicted sum of each two jobs, fitted on the *chosen* ordered pairs alone; on none, by the rule."""
    learned = _fitted(pairs, chosen) if chosen.any() else NOTHING_MEASURED
    return _sums(learned_colocation(learned), pairs)


def as_shipped(pairs: Pairs, _: BoolArray, target: int) -> FloatArray:
    """Return what the artifact that is in use says of each job as the target's partner."""
    return np.asarray(_sums(learned_colocation(pretrained().colocation), pairs)[target])


def _sums(learned: LearnedColocation, pairs: Pairs) -> FloatArray:
    parts = _pair_throughputs(learned, pairs)
    return np.asarray(parts + parts.T)


def _pair_throughputs(learned: LearnedColocation, pairs: Pairs) -> FloatArray:
    return pair_throughputs(learned, pairs.features, [need.parameter_count for need in pairs.needs])[0]


def _fitted(pairs: Pairs, chosen: BoolArray) -> ColocationParameters:
    """Return the parameters from the *chosen* ordered pairs, and the jobs of which they are."""
    own = np.flatnonzero(chosen.any(axis=0) | chosen.any(axis=1))
    throughputs = np.where(chosen, pairs.parts, np.nan)[np.ix_(own, own)]
    models = [pairs.needs[job].parameter_count for job in own]
    return learn_pairs(NOTHING_MEASURED, pairs.features[own], models, throughputs)


def _held_out_models(pairs: Pairs) -> FloatArray:
    """Return each ordered pair's prediction with the first job's model held out; a pair of two models has two."""
    unseen = np.full_like(pairs.parts, np.nan)
    measured = ~np.isnan(pairs.parts)
    for model in sorted(set(pairs.models)):
        train_mask = pairs.models != model
        predictions = _pair_throughputs(
            learned_colocation(_fitted(pairs, measured & train_mask[:, np.newaxis] & train_mask)), pairs
        )
        tested = measured & ~train_mask[:, np.newaxis]
        unseen[tested] = predictions[tested]
    return unseen


def _by_rule(pairs: Pairs) -> FloatArray:
    """Return what is said of each ordered pair where nothing was measured."""
    return np.where(np.isnan(pairs.parts), np.nan, _pair_throughputs(learned_colocation(NOTHING_MEASURED), pairs))


def _held_out_pairs(pairs: Pairs) -> FloatArray:
    """Return each ordered pair's prediction with the pair, but neither of its jobs, held out."""
    unseen = np.full_like(pairs.parts, np.nan)
    measured = ~np.isnan(pairs.parts)
    numbers = np.triu(np.random.default_rng(0).integers(0, PAIR_FOLDS, measured.shape))
    numbers = numbers + numbers.T
    for fold in range(PAIR_FOLDS):
        tested = measured & (numbers % PAIR_FOLDS == fold)
        predictions = _pair_throughputs(learned_colocation(_fitted(pairs, measured & ~tested)), pairs)
        unseen[tested] = predictions[tested]
    return unseen


class _Split(NamedTuple):
    name: str
    title: str
    chosen_pairs: Callable[[Pairs], FloatArray]


_SPLITS = (
    _Split("known", "pair held out", _held_out_pairs),
    _Split("partly", "one job's model held out", _held_out_models),
    _Split("unknown", "nothing measured: the rule", _by_rule),
)


def _errors(pairs: Pairs, parts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the logarithmic errors of single throughputs and of sums, NaN where not measured."""
    sums = parts + parts.T
    return np.abs(np.log(pairs.parts / parts)), np.abs(np.log(pairs.sums / sums))


def _deviations(pairs: Pairs, parts: FloatArray) -> tuple[float, float]:
    one, total = (float(np.nanquantile(errors, 0.9)) / NINETY_PERCENT for errors in _errors(pairs, parts))
    return one, total


def _coverage(pairs: Pairs) -> ScoreTable:
    """Return how often the truth lay inside intervals that the other models' errors gave."""
    lines: list[tuple[str | float | None, ...]] = []
    for split in _SPLITS:
        parts = split.chosen_pairs(pairs)
        inside: list[FloatArray] = []
        widths: list[float] = []
        for errors in _errors(pairs, parts):
            hits = np.full_like(errors, np.nan)
            for model in sorted(set(pairs.models)):
                own = pairs.models == model
                limit = np.nanquantile(errors[~own], 0.9)
                hits[own] = np.where(np.isnan(errors[own]), np.nan, errors[own] <= limit)
            inside.append(hits)
            widths.append(float(np.exp(np.nanquantile(errors, 0.9))))
        lines.append((split.title, *(100.0 * float(np.nanmean(hits)) for hits in inside), *widths))
    return ScoreTable(
        title="Co-location: coverage of the 90 % intervals, %, and the factor to either end",
        columns=("split", "one job", "sum", "factor, one job", "factor, sum"),
        rows=tuple(lines),
    )
