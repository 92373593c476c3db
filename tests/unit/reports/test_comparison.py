"""This month against the last, and energy where a counter is a job's own."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpusage.reports.accuracy import Promises
from gpusage.reports.amounts import Rates
from gpusage.reports.lines import sections
from gpusage.reports.report import Period, Report, period_of_month, report_of
from gpusage.reports.tallies import period_totals
from gpusage.store.rows import Observation
from observed import DAY_S, HALF, NOW_S, month, month_before, record, usage

PERIOD = Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S)


def compared() -> Report:
    observations = [*month(), *month_before()]
    return report_of([each.decision for each in observations if each.decision], observations, Rates(), PERIOD)


def test_a_run_counts_in_the_time_in_which_it_ended() -> None:
    report = compared()
    assert (report.totals.job_count, report.run_count) == (40, 40)
    assert report.previous is not None
    assert (report.previous.job_count, report.previous.hours.freed, report.previous.share_count) == (12, 0.0, 0)
    assert PERIOD.previous_since_s == NOW_S - 60 * DAY_S


def test_a_decision_of_the_time_before_is_not_one_of_this_time() -> None:
    old = replace(record(1), decided_at_s=PERIOD.since_s - 1)
    assert [each.count for each in report_of([record(2), old], [], Rates(), PERIOD).decisions] == [1]


def test_the_time_before_stands_below_the_weeks() -> None:
    weeks = next(iter(sections(compared())))
    assert [row[:4] for row in weeks.rows] == [("2023-11-06", "15", "-", "27.0"), ("2023-11-13", "25", "-", "45.0")]
    assert "12 jobs, 24.0 GPU hours booked, 8.38 used, 0.00 freed" in weeks.notes[-1]


@pytest.mark.parametrize(("month", "days"), [(1, (31, 31)), (3, (28, 31)), (12, (30, 31))])
def test_a_month_stands_beside_the_month_before_it(month: int, days: tuple[int, int]) -> None:
    period = period_of_month(2026, month, 2e9)
    begin = time.localtime(period.since_s)
    assert (begin.tm_year, begin.tm_mon, begin.tm_mday, begin.tm_hour) == (2026, month, 1, 0)
    # A change of clocks may take or add an hour.
    assert round((period.since_s - period.previous_since_s) / DAY_S) == days[0]
    assert round((period.until_s - period.since_s) / DAY_S) == days[1]


def test_a_month_that_goes_on_ends_now() -> None:
    now_s = time.mktime((2026, 10, 5, 12, 0, 0, 0, 0, -1))
    assert period_of_month(2026, 10, now_s).until_s == now_s


def test_where_nothing_is_kept_of_the_time_before_nothing_is_compared() -> None:
    report = report_of([], [*month()], Rates(), PERIOD)
    assert report.previous is None
    assert len(next(iter(sections(report))).notes) == 1


def test_energy_counts_where_the_counter_is_the_jobs_own() -> None:
    """The counter is the whole GPU's: beside others nobody knows whose joules they are."""
    decided = record(1)
    own = usage(decided, granted=HALF, energy_j=7.2e6)
    shared, unknown = replace(own, alone_s=100.0), replace(own, energy_j=None)
    runs = [Observation(usage=each, decision=decided) for each in (own, shared, unknown)]
    energy = period_totals(runs, Promises(), 60.0).energy
    assert energy is not None
    assert (energy.kwh, energy.booked_hours) == (pytest.approx(2.0), 1.0)
    assert period_totals(runs[1:], Promises(), 60.0).energy is None
