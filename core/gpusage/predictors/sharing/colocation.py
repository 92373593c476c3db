"""How jobs on one GPU slow each other down under MPS: by a rule on activities, or from pairs that this site measured.

By the rule, all jobs fit and slow each other a little while the sums of SM activity and of DRAM activity stay below 1;
above 1 they share what there is. A job cannot use more SMs than its thread percentage allows. What a site measured of
pairs corrects the rule for jobs like those (`learn_pairs`): few pairs correct it little, and far from all of them it
stands alone. gpusage comes without measured jobs: what those of one campaign did to each other holds in no other.

Jobs share memory bandwidth and cache whatever the percentages are, so the price of a share grows with the number of
partners (`slowdown_with_partners`). They slow only the GPU's own time: a job that waits for its host pays almost
nothing, so a price near 1 hardly grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import exp, hypot, log
from typing import NamedTuple

import numpy as np

from gpusage.devices.shares import memory_cap_bytes
from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.artifacts import ColocationParameters, Span, pretrained, shaped
from gpusage.predictors.intervals import NINETY_PERCENT
from gpusage.predictors.sharing.host import SHARPNESS
from gpusage_hooks import hookimpl
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Colocation, Gpu, GpuNeed, Interval
from gpusage_hooks.units import MIB, WHOLE_PERCENT

INTERFERENCE = 0.25
"""Slowdown of a job for each unit of the others' DRAM activity, as much as it uses the memory itself."""
CONTENTION = 0.15
"""Slowdown of a job for each unit of the others' utilization: launches, caches and clocks are shared."""
HEADROOM = 0.10
"""As the sharing rules' default: what a thread percentage grants beyond the predicted high end."""
WORTHWHILE_SUM = 1.15
"""Two jobs one after the other reach 1; sharing must be likely to gain at least this much to be recommended."""
MIN_THROUGHPUT = 0.02
"""A job keeps at least this share of its throughput: nothing starves."""
PAIR_SIZE = 2
"""All measured jobs ran two by two; in larger sets the rule counts as far as no job is like a measured one."""
PENALTIES = tuple(np.logspace(-2, 2, 13).tolist())
"""Of which ridge regression takes one; where pairs are few, one near 1 is taken."""
LEAST_SCALE = 1e-6
"""Of a feature that is the same for all jobs."""
KNOWN_SIMILARITY = 0.45
"""A job is known where its figures alone make it so like a measured one; 0.5 are the same figures."""


class ColocationDeviations(NamedTuple):
    """Deviations of the logarithm of truth over prediction: one job's throughput, and the sum."""

    one: float
    total: float


class LearnedColocation(NamedTuple):
    """What was measured of which jobs, as effects on the logarithm of a throughput over that by the rule.

    A new job has each measured job's effects as far as it is like it (`similarities`); a row of *jobs* is scaled
    features as `features_of` gives them.

    Attributes:
        models: Of each job the number of parameters, by which models are told apart; 0 is like no other.
        sensitivity: Of each job on its own throughput, whoever is its partner.
        pressure: The same on its partners' throughputs.
        interaction: Of each row's job on its own throughput beside the column's.
        same_model: Throughput that two jobs of one model have at most by the rule.
        near: Distance at which likeness falls off.
        known: Where all jobs are like measured ones.
        partly: Where some are.
        unknown: Where none is.
    """

    mean: FloatArray
    scale: FloatArray
    jobs: FloatArray
    models: FloatArray
    sensitivity: FloatArray
    pressure: FloatArray
    interaction: FloatArray
    same_model: float
    near: float
    known: ColocationDeviations
    partly: ColocationDeviations
    unknown: ColocationDeviations


@hookimpl(trylast=True)
def predict_colocation(needs: Sequence[GpuNeed], gpu: Gpu) -> Colocation:
    """Predict what jobs, each given by its need on *gpu*, do to each other under MPS."""
    # What each job uses and some headroom, cut down together where the sum is above 100.
    wanted = [min(100.0, 100.0 * (need.sm_activity.high + HEADROOM)) for need in needs]
    cut = min(1.0, 100.0 / sum(wanted)) if wanted else 1.0
    percents = tuple(max(1, int(percent * cut)) for percent in wanted)

    learned = learned_colocation(pretrained().colocation)
    rows = features_of(needs)
    models = [need.parameter_count for need in needs]
    deviations = deviations_of(learned, rows)
    alone = len(needs) == 1
    values = [1.0] if alone else throughputs(learned, rows, models, percents)
    total, highest = sum(values), float(len(needs))

    # Caps in proportion to what each job needs, whole MiB: what fits leaves room for all. Nothing is left over, for
    # libraries are faster with the memory that they take because it is there.
    usable_bytes = memory_cap_bytes(gpu.memory_bytes, WHOLE_PERCENT)
    required = [need.required_bytes.high for need in needs]
    caps = tuple(int(usable_bytes / MIB * each / sum(required)) * MIB for each in required)
    fits = sum(required) <= usable_bytes
    return Colocation(
        gpu=gpu.name,
        normalised_throughput=tuple(_interval(value, 1.0, 0.0 if alone else deviations.one) for value in values),
        mps_thread_percent=percents,
        memory_cap_bytes=caps,
        throughput_sum=_interval(total, highest, 0.0 if alone else deviations.total),
        fits=fits,
        recommended=fits and len(needs) > 1 and total >= WORTHWHILE_SUM,
    )


class JobFeatures(NamedTuple):
    """What is known of jobs, one entry per job; activities are 0 to 1."""

    log_step_s: FloatArray
    gpu_utilization: FloatArray
    sm_activity: FloatArray
    dram_activity: FloatArray
    log_samples_per_s: FloatArray
    log_memory_bytes: FloatArray


def features_of(needs: Sequence[GpuNeed]) -> FloatArray:
    """Return one row per job, with a column for each of `JobFeatures`."""
    rows = [
        (
            log(max(need.step_time_s.value, 1e-9)),
            need.gpu_utilization.value,
            need.sm_activity.value,
            need.dram_activity.value,
            log(max(need.throughput_samples_per_s.value, 1e-9)),
            log(max(need.memory_bytes.value, 1.0)),
        )
        for need in needs
    ]
    return np.array(rows).reshape(-1, len(JobFeatures._fields))


def throughputs(
    learned: LearnedColocation, rows: FloatArray, models: Sequence[int | None], percents: Sequence[int] | None = None
) -> list[float]:
    """Return each job's throughput relative to running alone; *percents* limits the SMs that each may use.

    For two jobs, `pair_throughputs` gives it. For more, the partners' delays add up: public data shows no better rule.
    """
    pairs, known = pair_throughputs(learned, rows, models)
    delays = 1.0 / pairs - 1.0
    throughput = 1.0 / (1.0 + delays.sum(axis=1) - delays.diagonal())

    # All measured jobs ran two by two: in larger sets the rule counts as far as no job is like a measured one.
    if len(rows) > PAIR_SIZE:
        share = known.max()
        throughput = share * throughput + (1.0 - share) * np.minimum(throughput, throughputs_by_rule(rows))

    # A job cannot use more SMs than its thread percentage allows.
    granted = (
        np.ones(len(rows))
        if percents is None
        else np.array(percents) / 100.0 / np.maximum(JobFeatures(*rows.T).sm_activity, 1e-6)
    )
    result: list[float] = np.clip(np.minimum(throughput, granted), MIN_THROUGHPUT, 1.0).tolist()
    return result


def pair_throughputs(
    learned: LearnedColocation, rows: FloatArray, models: Sequence[int | None]
) -> tuple[FloatArray, FloatArray]:
    """Return each row's throughput with each column's job as partner, and how known each job is, 0 to 1.

    Two jobs of one model contend for the same things: the rule promises them no more than `same_model`.
    """
    likeness = similarities(learned, rows, models)
    own = (likeness @ learned.sensitivity)[:, np.newaxis]
    correction = own + likeness @ learned.pressure + likeness @ learned.interaction @ likeness.T
    by_rule = pair_throughputs_by_rule(rows, models, learned.same_model)
    return np.clip(by_rule * np.exp(correction), MIN_THROUGHPUT, 1.0), likeness.max(axis=1, initial=0.0)


def pair_throughputs_by_rule(rows: FloatArray, models: Sequence[int | None], same_model: float) -> FloatArray:
    """Return the same by the rule of `throughputs_by_rule` alone."""
    _, busy, sm, dram, _, _ = JobFeatures(*rows.T)
    slowdown = 1.0 + INTERFERENCE * np.outer(dram, dram) + CONTENTION * np.outer(busy, busy)
    crowding = np.maximum(np.add.outer(sm, sm), np.add.outer(dram, dram))
    by_rule = 1.0 / np.maximum(1.0, crowding) / slowdown
    return np.where(_same_model(models, models), np.minimum(by_rule, same_model), by_rule)


def learn_pairs(
    unlearned: ColocationParameters, rows: FloatArray, models: Sequence[int | None], throughputs: FloatArray
) -> ColocationParameters:
    """Return *unlearned*, a rule without pairs, with what measured pairs show of jobs.

    The effects are those of `LearnedColocation`, by ridge regression: the fewer pairs, the nearer to the rule. The
    penalty is the one with the least error by leave-one-out cross-validation.

    Args:
        unlearned: With the intervals' widths, too.
        rows: The jobs' features, as `features_of` returns them.
        models: Their numbers of parameters, which tell models apart.
        throughputs: Each row's job beside each column's, relative to alone; NaN where it was not measured.

    Raises:
        RequestError: scikit-learn is not installed.
    """
    try:
        from sklearn.linear_model import RidgeCV  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        message = "Library scikit-learn must be there to learn from pairs; got: not installed. Add the extra [train]."
        raise RequestError(message) from error

    mean, scale = rows.mean(axis=0), np.maximum(rows.std(axis=0), LEAST_SCALE)
    count, jobs = len(rows), (rows - mean) / scale
    likeness = _likeness(jobs, jobs, models, models, unlearned.near)
    job, partner = np.nonzero(~np.isnan(throughputs))
    together = (likeness[job, :, np.newaxis] * likeness[partner, np.newaxis, :]).reshape(len(job), -1)
    measured = np.log(np.clip(throughputs[job, partner], MIN_THROUGHPUT, 1.0))
    over_rule = measured - np.log(pair_throughputs_by_rule(rows, models, unlearned.same_model)[job, partner])

    # No intercept: jobs unlike all that were measured keep the rule.
    ridge = RidgeCV(alphas=PENALTIES, fit_intercept=False)
    effects = ridge.fit(np.hstack([likeness[job], likeness[partner], together]), over_rule).coef_
    deviation = float(np.sqrt(-ridge.best_score_))  # of a measurement that was left out
    return replace(
        unlearned,
        mean=mean.tolist(),
        scale=scale.tolist(),
        jobs=jobs.tolist(),
        models=[count or 0 for count in models],
        sensitivity=effects[:count].tolist(),
        pressure=effects[count : 2 * count].tolist(),
        interaction=effects[2 * count :].reshape(count, count).tolist(),
        known=(deviation, deviation),
    )


def throughputs_by_rule(rows: FloatArray) -> FloatArray:
    """Return each job's throughput with all others, by the rule on their activities alone."""
    _, busy, sm, dram, _, _ = JobFeatures(*rows.T)
    slowdown = 1.0 + INTERFERENCE * dram * (dram.sum() - dram) + CONTENTION * busy * (busy.sum() - busy)
    crowding = max(1.0, float(sm.sum()), float(dram.sum()))
    return np.asarray(1.0 / crowding / slowdown)


def similarities(learned: LearnedColocation, rows: FloatArray, models: Sequence[int | None]) -> FloatArray:
    """Return how like each of *rows* is to each measured job: 1 the same, half another run of its model, 0 another."""
    scaled_rows = (rows - learned.mean) / learned.scale
    return _likeness(scaled_rows, learned.jobs, models, learned.models.tolist(), learned.near)


def _likeness(
    rows: FloatArray, jobs: FloatArray, models: Sequence[int | None], measured: Sequence[int | None], near: float
) -> FloatArray:
    distance_squared = ((rows[:, np.newaxis] - jobs) ** 2).sum(axis=-1)
    return np.asarray((np.exp(-0.5 * distance_squared / near**2) + _same_model(models, measured)) / 2)


def _same_model(models: Sequence[int | None], others: Sequence[int | None]) -> BoolArray:
    counts, other_counts = (np.array([count or 0 for count in each]) for each in (models, others))
    is_same: BoolArray = (counts[:, np.newaxis] == other_counts) & (counts > 0)[:, np.newaxis]
    return is_same  # models without weights are not alike


def deviations_of(learned: LearnedColocation, rows: FloatArray) -> ColocationDeviations:
    """Return how far off predictions are where all, some or none of the jobs ran as measured ones did.

    Another batch or mode of a measured model shares its effects, but nobody saw how well they hold there.
    """
    are_known = similarities(learned, rows, [None] * len(rows)).max(axis=1, initial=0.0) >= KNOWN_SIMILARITY
    if are_known.all():
        return learned.known
    return learned.partly if are_known.any() else learned.unknown


def _interval(value: float, highest: float, deviation: float) -> Interval:
    factor = exp(NINETY_PERCENT * deviation)
    return Interval(value=value, low=value / factor, high=max(value, min(highest, value * factor)))


@lru_cache(maxsize=4)
def learned_colocation(parameters: ColocationParameters) -> LearnedColocation:
    """Return the arrays of the artifact ``colocation``, made once for each."""
    jobs, features = len(parameters.jobs), len(parameters.mean)
    return LearnedColocation(
        mean=shaped("mean", parameters.mean, features),
        scale=shaped("scale", parameters.scale, features),
        jobs=shaped("jobs", parameters.jobs, jobs, features),
        models=shaped("models", parameters.models, jobs),
        sensitivity=shaped("sensitivity", parameters.sensitivity, jobs),
        pressure=shaped("pressure", parameters.pressure, jobs),
        interaction=shaped("interaction", parameters.interaction, jobs, jobs),
        same_model=float(parameters.same_model),
        near=float(parameters.near),
        known=ColocationDeviations(*parameters.known),
        partly=ColocationDeviations(*parameters.partly),
        unknown=ColocationDeviations(*parameters.unknown),
    )


@lru_cache(maxsize=4096)
def slowdown_with_partners(price: Interval, partners: int, powers: Span | None = None) -> Interval:
    """Return the slowdown of a job that costs *price* on its share, with so many *partners*.

    Args:
        price: The slowdown on the share, with its part of the bandwidth, at least 1.
        partners: The other jobs on the GPU; all percentages together are 100 at most.
        powers: As in `Price.partner_powers`.

    Returns:
        The point is with average partners, the lower end with partners that do nothing, the upper end with bad
        ones. Measured were two to five equal processes without percentages (ParvaGPU), and two jobs with 50 % each.
    """
    return apply_partners(price, partners + 1, powers or pretrained().slowdown.proportional.partners)


def apply_partners(price: Interval, jobs: int, powers: Span) -> Interval:
    """Return *price* where *jobs* run on the GPU, by *powers* of their number."""
    average, bad = _factor(price.value, jobs, powers[0]), _factor(price.high, jobs, powers[1])
    value, bad = price.value * average, bad / average
    high = value * exp(hypot(log(price.high / price.value), log(max(bad, 1.0))))
    return Interval(value=value, low=price.low, high=high)


def _factor(price: float, jobs: int, power: float) -> float:
    """Return how much longer a step takes among *jobs*; the part of it that the GPU decides follows from its price."""
    return float(jobs ** (power * (1.0 - price**-SHARPNESS)))
