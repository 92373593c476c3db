"""`bench/memory_families.py`: what rows of a family have in common decides how many families can be covered."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "bench"))

from memory_families import Errors, _drawn, _in_band, _intraclass

FAMILIES = np.repeat([f"family {number}" for number in range(200)], 40)
ERRORS = Errors(np.ones(8000), np.ones(8000, dtype=bool), FAMILIES, FAMILIES, (0.05, 0.95))


def test_the_common_share_of_the_variance_is_recovered() -> None:
    """Normal rows: 0.5 of the variance is the family's in the first set, nothing in the second."""
    chance = np.random.default_rng(0)
    alone = chance.standard_normal(8000)
    common = np.repeat(chance.standard_normal(200), 40)
    assert _intraclass((alone + common) / np.sqrt(2), FAMILIES) == pytest.approx(0.5, abs=0.06)
    assert _intraclass(alone, FAMILIES) == pytest.approx(0.0, abs=0.01)


def test_families_with_one_error_are_inside_altogether_or_not_at_all() -> None:
    """Of independent rows, 34 to 38 of 40 are inside with a chance of 0.82 (binomial, 0.9 each)."""
    chance = np.random.default_rng(0)
    assert _in_band(FAMILIES, _drawn(ERRORS, (0.0, 0.0), chance)) == pytest.approx(0.82, abs=0.08)
    assert _in_band(FAMILIES, _drawn(ERRORS, (1.0, 0.0), chance)) == 0


def test_small_families_do_not_count() -> None:
    """19 rows of which 17 are inside are in the band, but too few."""
    families = np.repeat(["large", "small"], [20, 19])
    inside = np.r_[np.ones(20), np.ones(17), np.zeros(2)].astype(bool)
    assert _in_band(families, inside) == 0
