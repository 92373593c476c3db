"""What partners add is learned from processes side by side, and scored on other families."""

from __future__ import annotations

import pytest

from gpusage.predictors.sharing.colocation import apply_partners
from gpusage_hooks.types import Interval
from gpusage_lab.learning.slowdown_partners import PartnersRow, fitted_partners, partners_table

LAW = (0.1, 0.1)


def row(family: str, price: float, jobs: int) -> PartnersRow:
    alone = Interval(value=price, low=price / 1.1, high=price * 1.1)
    return PartnersRow(family=family, jobs=jobs, price=alone, slowdown=apply_partners(alone, jobs, LAW).value)


ROWS = [row(family, price, jobs) for family in "abc" for jobs in (2, 3) for price in (1.0, 1.3, 1.0 + 0.9 * (jobs - 1))]


def test_the_law_that_made_the_rows_is_found_again() -> None:
    assert fitted_partners(ROWS) == (pytest.approx(0.1), pytest.approx(0.1))


def test_the_table_has_a_line_for_each_number_of_jobs_and_for_each_plainer_rule() -> None:
    table = partners_table(ROWS)
    assert [line[0] for line in table.rows] == [
        "gpusage, 2 jobs",
        "gpusage, 3 jobs",
        "price alone",
        "in proportion to the jobs",
    ]
    assert table.rows[0][2] == pytest.approx(0.0, abs=1e-6)


def test_without_rows_partners_add_nothing() -> None:
    """A site that trains on its own data may have no processes side by side among it."""
    assert fitted_partners(()) == (0.0, 0.0)
