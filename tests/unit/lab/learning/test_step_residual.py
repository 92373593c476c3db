from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpusage.predictors.intervals import ratio
from gpusage.predictors.times.efficiency import NO_RESIDUAL, STEP_FEATURES
from gpusage_hooks.types import Interval
from gpusage_lab.learning.step_ratio import StepPairs, shared_shares
from gpusage_lab.learning.step_residual import ResidualRows, fit_residual

GPUS = ("old", "new")
GENERATOR = np.random.default_rng(0)
MODELS = GENERATOR.normal(0.0, 1.0, (600, len(STEP_FEATURES)))
COMMON = 0.2 * np.tanh(MODELS[:, 0])
OWN = 0.1 * np.tanh(MODELS[:, 1])


def rows() -> ResidualRows:
    """Steps that take longer by what all GPUs have in common, on the new one by a part of its own as well."""
    return ResidualRows(
        features=np.repeat(MODELS, 2, axis=0),
        misses=np.column_stack([COMMON, COMMON + OWN]).ravel() + GENERATOR.normal(0.0, 0.01, 1200),
        gpus=GPUS * 600,
        models=[str(index) for index in range(600) for _ in GPUS],
        families=[str(index % 30) for index in range(600) for _ in GPUS],
    )


ROWS = rows()


def test_a_correction_explains_what_gpus_differ_in() -> None:
    actual = fit_residual(ROWS)
    old, new = (actual.log_factors(MODELS, [gpu] * 600) for gpu in GPUS)
    assert np.abs(new - old - OWN).mean() < 0.4 * np.abs(OWN).mean()


def test_a_gpu_on_which_few_models_were_measured_is_not_corrected() -> None:
    gpus = [*ROWS.gpus[:-100], *["few"] * 100]
    actual = fit_residual(replace(ROWS, gpus=gpus))
    assert set(actual.by_gpu) == set(GPUS)
    new, few = actual.log_factors(MODELS[:1].repeat(2, axis=0), ["new", "few"])
    assert new != 0.0
    assert few == 0.0


def test_where_no_gpu_has_rows_enough_there_is_no_correction() -> None:
    few = replace(ROWS, gpus=[str(index) for index in range(1200)])
    assert fit_residual(few) is NO_RESIDUAL


def test_the_same_rows_give_the_same_correction() -> None:
    first, second = fit_residual(ROWS), fit_residual(ROWS)
    assert set(first.by_gpu) == set(GPUS)
    assert (first.anchors == second.anchors).all()
    assert all((first.by_gpu[name] == second.by_gpu[name]).all() for name in GPUS)


def test_far_from_all_graphs_seen_a_correction_stays_small() -> None:
    actual = fit_residual(ROWS)
    assert np.abs(actual.log_factors(np.full((1, len(STEP_FEATURES)), 1e6), ["new"])).item() < 0.1
    assert (
        actual.log_factors(np.full((1, len(STEP_FEATURES)), -1e6), ["new"]).item() == 0.0
    )  # of fewer kernels than any


def test_no_residual_corrects_nothing() -> None:
    assert NO_RESIDUAL.log_factors(np.ones((2, len(STEP_FEATURES))), GPUS).tolist() == [0.0, 0.0]


def test_a_ratio_is_free_of_the_error_that_both_figures_share() -> None:
    over, under = Interval(value=2.0, low=1.6, high=2.5), Interval(value=1.0, low=0.8, high=1.25)
    independent, related, same = (ratio(over, under, shared) for shared in (0.0, 0.5, 1.0))
    assert independent.high / 2.0 == pytest.approx(1.25**2**0.5)
    assert related.high / 2.0 == pytest.approx(1.25)
    assert (same.low, same.high) == pytest.approx((2.0, 2.0))


def test_the_share_leaves_nine_ratios_in_ten_inside() -> None:
    missed = np.abs(GENERATOR.normal(0.0, 0.12, 1000))
    pairs = StepPairs(
        rows=np.zeros((1000, 2), dtype=int), kind=np.arange(1000) % 3, reach=np.full((1000, 2), 0.3), missed=missed
    )
    shared = shared_shares(pairs)
    assert 0.88 < pairs.covered(shared)[pairs.kind == 0].mean() < 0.92
    assert pairs.covered(shared)[pairs.kind > 0].mean() >= 0.88
