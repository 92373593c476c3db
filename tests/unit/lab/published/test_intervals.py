"""Widths of intervals by kind of workload: conformal quantiles of misses that no fit has seen."""

from __future__ import annotations

from math import hypot

import numpy as np
import pytest

from gpusage.predictors.artifacts import StepTimeDeviations
from gpusage_lab.published.intervals import LEAST_ROWS, Miss, widths

DEVIATIONS = StepTimeDeviations(known=0.1, unseen_gpu=0.2, short=0.5)


def misses(kind: str, count: int, scale: float = 1.0, short: float = 0.0) -> list[Miss]:
    """So many misses, evenly from 0 to *scale*, beside what *short* explains."""
    sizes = (scale * np.arange(1, count + 1) / count).tolist()
    return [Miss(kind=kind, group="one", miss=hypot(size, DEVIATIONS.short * short), short=short) for size in sizes]


def test_nine_of_ten_and_a_new_row_lie_within_a_kinds_width() -> None:
    rows = misses("answer, eager", 99)
    assert widths(rows, DEVIATIONS) == {"answer, eager": pytest.approx(90 / 99)}  # 90 of the 100 with the new one


def test_what_short_kernels_explain_is_not_counted_twice() -> None:
    rows = misses("infer, compiled", 99, short=0.3)
    assert widths(rows, DEVIATIONS) == {"infer, compiled": pytest.approx(90 / 99)}


def test_a_kind_of_few_rows_has_the_width_of_those_whose_names_begin_alike() -> None:
    several = "answer, eager, several GPUs"
    rows = misses("answer, eager", LEAST_ROWS) + misses(several, LEAST_ROWS - 1, scale=3.0)
    actual = widths(rows, DEVIATIONS)
    assert actual["answer, eager"] < 1 < actual[several]
    alone = widths([*rows, *misses(several, 1, scale=3.0)], DEVIATIONS)
    assert alone["answer, eager"] == actual["answer, eager"]
    assert alone[several] > actual[several]  # its own now
    assert widths(misses(several, LEAST_ROWS - 1), DEVIATIONS) == {}
    assert widths(misses("pass, engine", LEAST_ROWS - 1) + rows, DEVIATIONS) == actual
