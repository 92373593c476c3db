from __future__ import annotations

import numpy as np
import pytest

from gpusage_lab.learning import scores


def test_a_score_counts_misses_as_shares_of_what_was_measured() -> None:
    measured, predicted = np.array([1.0, 2.0, 4.0]), np.array([1.05, 1.0, 4.0])
    actual = scores.score(measured, predicted, predicted * 0.9, predicted * 1.1)
    assert actual.mape == pytest.approx((0.05 + 0.5 + 0.0) / 3)
    assert actual.median == pytest.approx(0.05)
    assert actual.within_10 == pytest.approx(2 / 3)
    assert actual.coverage == pytest.approx(2 / 3)  # 1 in 0.945-1.155, 2 not in 0.9-1.1, 4 in 3.6-4.4
    assert actual.width == pytest.approx(1.1 / 0.9)


def test_without_intervals_there_is_no_coverage() -> None:
    assert scores.score(np.array([1.0]), np.array([1.0])).coverage is None


def test_rmsle_is_the_root_mean_square_of_differences_of_log_one_plus() -> None:
    # log(1 + 1) - log(1 + 0) = log 2, and 0
    assert scores.rmsle(np.array([0.0, 3.0]), np.array([1.0, 3.0])) == pytest.approx(np.log(2) / np.sqrt(2))


def test_equal_values_share_their_rank_and_a_constant_has_none() -> None:
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)
    assert scores.rank_correlation(np.array([1.0, 5.0, 5.0, 9.0]), np.arange(4.0)) == pytest.approx(4.5 / 22.5**0.5)
    assert scores.rank_correlation(np.ones(4), np.arange(4.0)) == 0.0


def test_a_weighted_quantile_counts_campaigns_where_a_plain_one_counts_rows() -> None:
    values = np.array([0.5, *np.linspace(0.01, 0.09, 9)])
    alike, by_campaign = np.ones(10), np.array([1.0, *[1 / 9] * 9])
    assert scores.weighted_quantile(values, alike, 0.5) == pytest.approx(0.05)
    assert scores.weighted_quantile(values, by_campaign, 0.9) == 0.5
    assert scores.weighted_quantile(values, by_campaign, 0.25) == pytest.approx(0.05)
