from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.sharing.colocation import (
    features_of,
    learned_colocation,
    predict_colocation,
    throughputs,
)
from gpusage_hooks.types import GpuNeed, Interval
from gpusage_lab.learning.colocation import NOTHING_MEASURED, SAME_MODEL, _fitted, as_shipped, refit_sums
from gpusage_lab.learning.pairs import Pairs, activities, kace, mean_sums, scores, seen_as, with_partner_held_out

V100 = builtin_catalogue().find("v100")
MODELS = (1, 2, 3, 4, 5)
"""Of five jobs, their parameter counts."""


def point(value: float) -> Interval:
    return Interval(value=value, low=value, high=value)


def need(busy: float, *, gib: float = 1.0, step_s: float = 0.1) -> GpuNeed:
    return GpuNeed(
        gpu=V100.name,
        step_time_s=point(step_s),
        memory_bytes=point(gib * 2**30),
        gpu_utilization=point(busy),
        sm_activity=point(0.8 * busy),
        dram_activity=point(0.3 * busy),
        throughput_samples_per_s=point(32 / step_s),
        fits=True,
    )


def five_jobs() -> Pairs:
    """Five jobs of five models; the second makes everything beside it slow, which its figures do not show."""
    needs = tuple(need(0.5, gib=gib) for gib in (1.0, 2.0, 4.0, 8.0, 16.0))
    parts = np.full((5, 5), 0.9)
    parts[:, 1] = 0.3
    np.fill_diagonal(parts, np.nan)
    return Pairs(
        jobs=tuple((name, 1, False) for name in "abcde"),
        needs=needs,
        features=features_of(needs),
        sums=parts + parts.T,
        parts=parts,
        failed=(),
        gpu=V100,
    )


def test_what_was_measured_is_what_is_said_of_a_pair_that_taught() -> None:
    pairs = five_jobs()
    learned = learned_colocation(_fitted(pairs, ~np.isnan(pairs.parts)))
    with_loud = throughputs(learned, pairs.features[[0, 1]], MODELS[:2])[0]
    with_quiet = throughputs(learned, pairs.features[[0, 2]], MODELS[:2])[0]
    assert with_loud == pytest.approx(0.3, abs=0.15)
    assert with_quiet == pytest.approx(0.9, abs=0.1)


def test_a_target_never_seen_avoids_the_partner_that_made_others_slow() -> None:
    pairs = five_jobs()
    output = refit_sums(pairs, pairs.models != "a", 0)
    assert output[1] < min(output[2], output[3])
    assert scores(pairs, mean_sums)["all"] == pytest.approx(100.0)


def test_each_target_that_has_a_queue_of_candidates_is_scored_by_itself() -> None:
    pairs = five_jobs()
    sums = pairs.sums.copy()
    sums[4, 3] = sums[3, 4] = np.nan  # which leaves these two with three candidates
    actual = scores(replace(pairs, sums=sums), mean_sums)
    assert [target for target, _, _ in actual["targets"]] == [0, 1, 2]
    assert actual["all"] == pytest.approx(np.mean([best for _, best, _ in actual["targets"]]))
    assert actual["queue"] == pytest.approx(np.mean([queue for _, _, queue in actual["targets"]]))


def test_what_a_partner_did_to_others_is_not_known_where_its_model_is_held_out() -> None:
    pairs = five_jobs()
    parts = np.where(pairs.parts == 0.3, 0.9, pairs.parts)
    quiet = replace(pairs, parts=parts, sums=parts + parts.T)
    loud, silent = (with_partner_held_out(refit_sums)(each, pairs.models != "a", 0)[1] for each in (pairs, quiet))
    assert loud == pytest.approx(silent)


def test_two_jobs_of_one_unknown_model_are_promised_less_than_two_of_different_ones() -> None:
    learned, rows = learned_colocation(NOTHING_MEASURED), features_of([need(0.2), need(0.2)])
    assert throughputs(learned, rows, (7, 7)) == pytest.approx([SAME_MODEL, SAME_MODEL])
    assert throughputs(learned._replace(same_model=0.9), rows, (7, 7)) == pytest.approx([0.9, 0.9])
    assert min(throughputs(learned, rows, (0, 0))) > SAME_MODEL


def test_a_regression_on_sums_finds_a_sum_that_is_linear_in_them() -> None:
    pairs = five_jobs()
    sums = pairs.features.sum(axis=1)[:, np.newaxis] + pairs.features.sum(axis=1)
    linear = replace(pairs, sums=np.where(np.isnan(pairs.parts), np.nan, sums))
    assert kace(linear, np.full(5, fill_value=True), 0)[1:] == pytest.approx(linear.sums[0, 1:], rel=1e-6)


def test_far_from_every_measured_job_the_rule_stands_alone() -> None:
    rows = features_of([need(0.2), need(0.2)])
    assert throughputs(learned_colocation(NOTHING_MEASURED), rows, MODELS[:2]) == pytest.approx(
        [1.0 / (1 + 0.25 * 0.06**2 + 0.15 * 0.04)] * 2
    )


def test_what_is_shipped_chooses_as_the_rule_does_whatever_was_measured_elsewhere() -> None:
    pairs, everyone = five_jobs(), np.full(5, fill_value=True)
    busier = [need(busy) for busy in (0.1, 0.3, 0.5, 0.7, 0.9)]
    pairs = replace(
        pairs,
        needs=tuple(replace(each, parameter_count=count) for each, count in zip(busier, MODELS, strict=True)),
        features=features_of(busier),
    )
    for target in range(5):
        shipped, rule = (np.delete(policy(pairs, everyone, target), target) for policy in (as_shipped, activities))
        assert shipped == pytest.approx(rule)


def test_a_policy_that_knows_more_of_the_jobs_is_scored_on_the_same_pairs() -> None:
    pairs = five_jobs()
    idle = replace(pairs, features=features_of([need(0.0)] * len(pairs.jobs)))
    everyone = np.full(len(pairs.jobs), fill_value=True)
    assert seen_as(idle, activities)(pairs, everyone, 0) == pytest.approx([2.0] * len(pairs.jobs))  # nobody is slowed


def test_a_third_job_never_helps() -> None:
    pairs = five_jobs()
    learned = learned_colocation(_fitted(pairs, ~np.isnan(pairs.parts)))
    two, three = (throughputs(learned, pairs.features[:count], MODELS[:count]) for count in (2, 3))
    assert three[0] <= two[0]
    assert three[1] <= two[1]


def test_pairs_that_do_not_fit_are_never_recommended() -> None:
    actual = predict_colocation([need(0.1, gib=9.0), need(0.1, gib=9.0)], V100)
    assert not actual.fits
    assert not actual.recommended
    assert predict_colocation([need(0.1), need(0.1)], V100).recommended


def test_jobs_unlike_the_measured_ones_get_wider_intervals() -> None:
    actual = predict_colocation([need(0.3, step_s=1e-6), need(0.3, step_s=1e-6)], V100).throughput_sum
    assert actual.low <= actual.value / 1.5
    assert actual.value <= actual.high <= 2.0
