"""Policies that choose a job's partner without us: rules, the most popular partner, KACE's linear regression."""

from __future__ import annotations

import numpy as np

from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.sharing.colocation import JobFeatures, throughputs_by_rule
from gpusage_lab.learning.pairs import Pairs, Policy

SM, DRAM, MEMORY = map(JobFeatures._fields.index, ("sm_activity", "dram_activity", "log_memory_bytes"))
"""Columns of `gpusage.predictors.sharing.colocation.features_of`."""


def mean_sums(pairs: Pairs, train_mask: BoolArray, _: int) -> FloatArray:
    """Return the mean sum of each job beside all training jobs; the mean of all sums for any other job."""
    known = np.where(train_mask[:, np.newaxis] & train_mask, pairs.sums, np.nan)
    counts = (~np.isnan(known)).sum(axis=1)
    return np.where(counts > 0, np.nansum(known, axis=1) / np.maximum(counts, 1), np.nanmean(known))


def kace(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
    """Return what a linear regression on the sums of both jobs' features says."""
    return kace_fitted_on(pairs, train_mask)(pairs, train_mask, target)


def kace_fitted_on(source: Pairs, train_mask: BoolArray) -> Policy:
    """Return the regression fitted on the training jobs of *source*, whatever the training jobs are later."""
    first, second = np.nonzero(np.triu(~np.isnan(source.sums) & train_mask[:, np.newaxis] & train_mask))

    def design(rows: FloatArray) -> FloatArray:
        return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)

    weights, *_ = np.linalg.lstsq(
        design(source.features[first] + source.features[second]), source.sums[first, second], rcond=None
    )
    return lambda pairs, _, target: np.asarray(design(pairs.features[target] + pairs.features) @ weights)


def activities(pairs: Pairs, _: BoolArray, target: int) -> FloatArray:
    """Return what the rule from activities says, of whoever was measured."""
    return np.array([throughputs_by_rule(pairs.features[[target, other]]).sum() for other in range(len(pairs.jobs))])


RANKING: dict[str, Policy] = {
    "random": lambda pairs, _, target: np.random.default_rng(target).random(len(pairs.jobs)),
    "MEMCAP (least memory)": lambda pairs, *_: -pairs.features[:, MEMORY],
    "SM% (most SM activity)": lambda pairs, *_: pairs.features[:, SM],
    "MEM% (least memory activity)": lambda pairs, *_: -pairs.features[:, DRAM],
}
"""Policies that order partners and predict nothing."""
GUESSING: dict[str, Policy] = {
    "popular partner": mean_sums,
    "KACE: linear regression on sums": kace,
    "rule from activities alone": activities,
}


def with_partner_held_out(policy: Policy) -> Policy:
    """Return *policy* with the partner's model held out as well as the target's."""

    def both(pairs: Pairs, train_mask: BoolArray, target: int) -> FloatArray:
        predictions = np.zeros(len(pairs.jobs))
        for model in sorted(set(pairs.models)):
            own = pairs.models == model
            predictions[own] = policy(pairs, train_mask & ~own, target)[own]
        return predictions

    return both


def seen_as(known: Pairs, policy: Policy) -> Policy:
    """Return *policy* with the features of *known*, the same jobs of which more is known."""
    return lambda _, train_mask, target: policy(known, train_mask, target)
