"""Co-location under MPS: fitted on Gavel's V100 pairs, scored with the target's model held out; Lucid is a test alone.

Seven models are few to train on. Whatever was tried on the target's features (the artifact's card lists it) did
no better than to know the partner; so what is learned is each measured job's own effect, and jobs like it have it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np

from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.artifacts import Card, ColocationParameters
from gpusage.predictors.colocation import (
    WORTHWHILE_SUM,
    LearnedColocation,
    learned_colocation,
    pair_throughputs,
    predict_colocation,
)
from gpusage.predictors.intervals import NINETY_PERCENT
from gpusage_lab.learning.artifacts import Artifact
from gpusage_lab.learning.pairs import QUEUE_LENGTH, Pairs, Policy, gavel, lucid, lucid_utilizations, scores
from gpusage_lab.learning.partners import GUESSING, RANKING, seen_as, with_partner_held_out
from gpusage_lab.learning.profiled_pairs import joined, profiled_pairs
from gpusage_lab.learning.targets import Points, ScoreTable
from gpusage_lab.measurements.tables import DataFolder

NEAR = 0.3
"""Distance, in standard deviations of the features, at which one job says little of another."""
SPREAD, NOISE = 0.2, 0.15
"""Standard deviations of a throughput: what jobs add to it, and what no job explains."""
PAIR_FOLDS = 5
FEATURES = ("log step s", "utilization", "SM activity", "DRAM activity", "log samples/s", "log bytes")
"""What `gpusage.predictors.colocation.features_of` returns."""


def fit(data: DataFolder) -> Sequence[Artifact]:
    """Fit on all pairs that ran; the intervals on models held out, and on pairs held out of known jobs."""
    own = profiled_pairs(data)
    pairs = joined([gavel(data), *own.values()])
    everything = np.full(len(pairs.jobs), fill_value=True)
    parameters = _fitted(pairs, ~np.isnan(pairs.parts), everything)
    deviations = {split.name: _deviations(pairs, split.chosen_pairs(pairs)) for split in _SPLITS}
    parameters = replace(
        parameters, known=deviations["known"], partly=deviations["partly"], unknown=deviations["unknown"]
    )
    ours, apart = scores(pairs, refit_sums), scores(pairs, with_partner_held_out(refit_sums))
    card = Card(
        purpose="Throughput of jobs beside each other on one GPU under MPS, relative to running alone.",
        fitted_on=(
            "gavel_pairs.csv, simulation_2020, V100, the only public rows under MPS",
            *(f"profile {name}: {len(campaign.jobs)} jobs" for name, campaign in own.items()),
            f"{int((~np.isnan(pairs.sums)).sum() / 2)} pairs, {len(pairs.jobs)} jobs, {len(set(pairs.models))} models",
            f"left out: {len(pairs.failed)} pairs that failed, and pairs of equal jobs",
        ),
        licences=("Gavel: MIT", "gpusage profile: our own"),
        ranges={name: (float(c.min()), float(c.max())) for name, c in zip(FEATURES, pairs.features.T, strict=True)},
        errors={
            "% of Oracle, all candidates, model held out": ours["all"],
            f"% of Oracle, queues of {QUEUE_LENGTH}, model held out": ours["queue"],
            "% of Oracle, all candidates, both models held out": apart["all"],
            f"% of Oracle, queues of {QUEUE_LENGTH}, both models held out": apart["queue"],
        },
        notes=(*_WHY, "In the source 66 of the 306 pairs are clipped to solo speed; two campaigns differ by 24 %."),
    )
    return (Artifact(name="colocation", card=card, parameters=parameters),)


_WHY = (
    "Seven models do not tell from a graph how a new one takes a partner: this is popular partner, as job effects.",
    "Some 70 forms were looked at on these folds: Gaussian processes with interactions, two-resource, monotone laws.",
    "The best of 230 by folds within the training models gave 93.0 and 87.8 % of Oracle: worse than popular partner.",
    "Job effects that have seen the target itself reach little more: what is missing is who suits whom.",
    "Beyond two jobs delays are added, and thread percentages only limit; nothing public tells better.",
    "MISO's mixes of seven name no job and are relative to each job's own best: no slowdown can be read from them.",
)


def evaluate(data: DataFolder) -> Sequence[ScoreTable]:
    """Score every policy on both sources."""
    pairs = gavel(data)
    ours = {"ours": refit_sums, "ceiling: job effects with the target seen": _fitted_on_all}
    apart = {name: with_partner_held_out(policy) for name, policy in (*GUESSING.items(), ("ours", refit_sums))}
    shown = [
        _table("Gavel 2020, V100, MPS", pairs, {**RANKING, **GUESSING, **ours}, _WHY),
        _table("Gavel 2020, V100, MPS, the partner's model held out too", pairs, {**RANKING, **apart}),
        _coverage(pairs),
        _failures(pairs),
    ]
    if "lucid_pairs.csv" in data:
        policies = {"ours, fitted on Lucid's other models": refit_sums, "ours, as shipped": shipped(pairs)}
        if "lucid_solo.csv" in data:
            known = lucid(data, lucid_utilizations(data))
            policies["ours, as shipped, utilizations alone known"] = seen_as(known, shipped(pairs))
        title = "Lucid, RTX 3090, time slicing; nothing that is shipped was fitted on it"
        shown.append(_table(title, lucid(data), {**RANKING, **GUESSING, **policies}))
    own = {name: campaign for name, campaign in profiled_pairs(data).items() if len(campaign.jobs) > QUEUE_LENGTH}
    policies = {**RANKING, **GUESSING, "ours": refit_sums}
    shown += [_table(f"gpusage profile, {name}, MPS", campaign, policies) for name, campaign in own.items()]
    return shown


def _table(title: str, pairs: Pairs, policies: Mapping[str, Policy], notes: tuple[str, ...] = ()) -> ScoreTable:
    figures_by_policy = {name: scores(pairs, policy) for name, policy in policies.items()}
    measured = ~np.isnan(pairs.sums)
    sums = next(figures["found"] for name, figures in figures_by_policy.items() if name.startswith("ours"))
    factors = _other_models_factors(pairs, sums)
    points = Points(
        title=title,
        unit="sum of normalised throughputs",
        measured=pairs.sums[measured].tolist(),
        predicted=sums[measured].tolist(),
        low=(sums / factors)[measured].tolist(),
        high=(sums * factors)[measured].tolist(),
    )
    counted = f"{len(pairs.jobs)} targets, {int(measured.sum() / 2)} pairs, {len(pairs.failed)} more failed."
    return ScoreTable(
        title=f"Co-location, target's model held out: {title}",
        columns=("policy", "% of Oracle, all", f"% of Oracle, queue of {QUEUE_LENGTH}", "MAPE %", "rank correlation"),
        rows=tuple(
            (name, of["all"], of["queue"], None if name in RANKING else of["error"], of["rank"])
            for name, of in figures_by_policy.items()
        ),
        notes=(counted, *notes),
        points=(points,),
    )


def _other_models_factors(pairs: Pairs, predictions: FloatArray) -> FloatArray:
    """Return the factor to either end of each sum's interval, by what the other models' targets were missed by."""
    errors = np.abs(np.log(pairs.sums / predictions))
    factors = np.ones_like(errors)
    for model in set(pairs.models):
        own = pairs.models == model
        factors[own] = np.exp(np.nanquantile(errors[~own], 0.9))
    return factors


def refit_sums(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
    """Return what ours says of each job as the target's partner, fitted on the training jobs alone."""
    chosen = ~np.isnan(pairs.parts) & train_mask[:, np.newaxis] & train_mask
    return np.asarray(_sums(learned_colocation(_fitted(pairs, chosen, train_mask)), pairs)[target])


def _fitted_on_all(pairs: Pairs, _: BoolArray, target: int) -> FloatArray:
    return shipped(pairs)(pairs, _, target)


def shipped(source: Pairs) -> Policy:
    """Return ours as it is fitted on all of *source*, whatever the training jobs are."""
    learned = learned_colocation(_fitted(source, ~np.isnan(source.parts), np.full(len(source.jobs), fill_value=True)))

    def policy(pairs: Pairs, _: BoolArray, target: int) -> FloatArray:
        return np.asarray(_sums(learned, pairs)[target])

    return policy


def _sums(learned: LearnedColocation, pairs: Pairs) -> FloatArray:
    parts = _pair_throughputs(learned, pairs)
    return np.asarray(parts + parts.T)


def _pair_throughputs(learned: LearnedColocation, pairs: Pairs) -> FloatArray:
    return pair_throughputs(learned, pairs.features, [need.parameter_count for need in pairs.needs])[0]


def _fitted(pairs: Pairs, chosen: BoolArray, train_mask: BoolArray) -> ColocationParameters:
    """Return the parameters from the *chosen* ordered pairs: throughput = average + victim's part + partner's part.

    The parts are drawn to 0 as their variance against the noise demands (ridge regression).
    """
    victim, partner = np.nonzero(chosen)
    throughput = np.minimum(pairs.parts[victim, partner], 1.0)
    average, count = throughput.mean(), len(pairs.jobs)
    rows = np.arange(len(victim))
    design = np.zeros((len(victim), 2 * count))
    design[rows, victim] = design[rows, count + partner] = 1.0
    penalty = (NOISE / SPREAD) ** 2 * np.eye(2 * count)
    effects = np.linalg.solve(design.T @ design + penalty, design.T @ (throughput - average))
    features = pairs.features
    mean, scale = features[train_mask].mean(axis=0), np.maximum(features[train_mask].std(axis=0), 1e-6)
    return ColocationParameters(
        features=FEATURES,
        mean=mean.tolist(),
        scale=scale.tolist(),
        jobs=((features - mean) / scale)[train_mask].tolist(),
        sensitivity=effects[:count][train_mask].tolist(),
        pressure=effects[count:][train_mask].tolist(),
        average=float(average),
        near=NEAR,
    )


def _held_out_models(pairs: Pairs) -> FloatArray:
    """Return each ordered pair's prediction with the first job's model held out; a pair of two models has two."""
    unseen = np.full_like(pairs.parts, np.nan)
    measured = ~np.isnan(pairs.parts)
    for model in sorted(set(pairs.models)):
        train_mask = pairs.models != model
        predictions = _pair_throughputs(
            learned_colocation(_fitted(pairs, measured & train_mask[:, np.newaxis] & train_mask, train_mask)), pairs
        )
        tested = measured & ~train_mask[:, np.newaxis]
        unseen[tested] = predictions[tested]
    return unseen


def _held_out_both(pairs: Pairs) -> FloatArray:
    """Return each ordered pair's prediction with both jobs' models held out."""
    unseen = np.full_like(pairs.parts, np.nan)
    measured = ~np.isnan(pairs.parts)
    for first, second in combinations_with_replacement(sorted(set(pairs.models)), 2):
        train_mask = (pairs.models != first) & (pairs.models != second)
        predictions = _pair_throughputs(
            learned_colocation(_fitted(pairs, measured & train_mask[:, np.newaxis] & train_mask, train_mask)), pairs
        )
        one, other = pairs.models == first, pairs.models == second
        tested = measured & (np.outer(one, other) | np.outer(other, one))
        unseen[tested] = predictions[tested]
    return unseen


def _held_out_pairs(pairs: Pairs) -> FloatArray:
    """Return each ordered pair's prediction with the pair, but neither of its jobs, held out."""
    unseen = np.full_like(pairs.parts, np.nan)
    measured = ~np.isnan(pairs.parts)
    numbers = np.triu(np.random.default_rng(0).integers(0, PAIR_FOLDS, measured.shape))
    numbers = numbers + numbers.T
    everything = np.full(len(pairs.jobs), fill_value=True)
    for fold in range(PAIR_FOLDS):
        tested = measured & (numbers % PAIR_FOLDS == fold)
        predictions = _pair_throughputs(learned_colocation(_fitted(pairs, measured & ~tested, everything)), pairs)
        unseen[tested] = predictions[tested]
    return unseen


class _Split(NamedTuple):
    name: str
    title: str
    chosen_pairs: Callable[[Pairs], FloatArray]


_SPLITS = (
    _Split("known", "pair held out", _held_out_pairs),
    _Split("partly", "one job's model held out", _held_out_models),
    _Split("unknown", "both jobs' models held out", _held_out_both),
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


def _failures(pairs: Pairs) -> ScoreTable:
    """Return what the shipped predictor says of pairs that failed, and of those that ran."""
    failed = [predict_colocation([pairs.needs[a], pairs.needs[b]], pairs.gpu) for a, b in pairs.failed]
    first, second = np.nonzero(np.triu(~np.isnan(pairs.sums)))
    ran = [predict_colocation([pairs.needs[a], pairs.needs[b]], pairs.gpu) for a, b in zip(first, second, strict=True)]
    parts = _held_out_models(pairs)
    recommended = np.triu(parts + parts.T)[first, second] >= WORTHWHILE_SUM
    truth = pairs.sums[first, second]
    gained = 100.0 * float((truth[recommended] > 1.0).mean())
    count = int(recommended.sum())
    note = f"Models held out, {count} pairs reach the sum that is recommended; {gained:.0f} % really gain."
    return ScoreTable(
        title="Co-location: pairs that failed, and what is recommended",
        columns=("pairs", "count", "predicted not to fit", "recommended"),
        rows=(
            ("failed", len(failed), sum(not one.fits for one in failed), _recommended(failed)),
            ("ran", len(ran), sum(not one.fits for one in ran), _recommended(ran)),
        ),
        notes=(note,),
    )


def _recommended(colocations: Sequence[Any]) -> int:
    return sum(one.recommended for one in colocations)
