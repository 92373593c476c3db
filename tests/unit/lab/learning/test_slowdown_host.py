"""The blocks that fill a GPU are fitted, with each family counted alike; one family alone is no evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.sharing.slowdown import points
from gpusage_hooks.types import Workload
from gpusage_lab.learning.slowdown import fitted_filling, fitted_host, fitted_on
from gpusage_lab.learning.slowdown_rows import MISO, PARVAGPU, RAPP, SlowdownColumns, SlowdownRow

GPU = builtin_catalogue().find("v100")
GROWTHS = {0.5: np.full(12, 2.0), 2.0: np.full(12, 1.5), 4.0: np.full(12, 1.1)}
EVERYTHING = np.arange(12)


def columns(*, utilization: float | None = None, families: str = "abcd") -> SlowdownColumns:
    """Return rows of *families*, one letter each, whose GPU decides and takes 1.5 times as long."""
    rows = tuple(
        SlowdownRow(
            source=(RAPP, PARVAGPU, MISO)[index % 3],
            key="",
            family=family,
            workload=Workload(mode="infer"),
            gpu=GPU,
            share=GPU,
            part=0.5,
            alone_s=0.01,
            slowdown=1.5,
            utilization=utilization if family == "a" else None,
        )
        for family in families
        for index in range(12 // len(families))
    )
    same = np.full(len(rows), 0.01)
    return SlowdownColumns(
        rows=rows,
        busy_s=same,
        step_s=same,
        growth=GROWTHS[0.5],
        sm_activity=same,
        kernel_count=np.ones(len(rows)),
        by_step_time=np.ones(len(rows)),
        growth_by_filling=GROWTHS,
    )


def test_the_blocks_that_made_the_rows_are_found_again() -> None:
    assert fitted_filling(columns(), EVERYTHING) == 2.0
    fitted = fitted_on(columns(), EVERYTHING)
    assert fitted.filling_blocks == 2.0
    fitted_columns = columns().filled(fitted.filling_blocks)
    assert np.allclose(
        points(
            fitted_columns.with_step_time_weight(fitted_host(fitted_columns, EVERYTHING)).by_step_time,
            fitted_columns.growth,
        ),
        1.5,
        rtol=0.05,
    )


def test_where_everything_is_in_proportion_no_blocks_are_fitted_and_the_growth_stays() -> None:
    plain = columns().in_proportion()
    assert fitted_filling(plain, EVERYTHING) is None
    assert plain.filled(None) is plain
    assert fitted_on(plain, EVERYTHING).filling_blocks is None


def test_each_family_counts_alike_however_many_rows_it_has() -> None:
    """Nine rows of one family cost twice as much, the one row of each of three others half as much again."""
    some = columns(families="aaaaaaaaabcd"[:12])
    rows = tuple(replace(row, slowdown=2.0 if row.family == "a" else 1.5, source=RAPP) for row in some.rows)
    assert fitted_filling(replace(some, rows=rows), EVERYTHING) == 2.0


def test_what_one_family_shows_of_a_utilization_is_not_taken_for_others() -> None:
    fitted = fitted_on(columns(utilization=1.0), EVERYTHING)
    assert fitted.working["utilization"] == fitted.working["step_time"]
