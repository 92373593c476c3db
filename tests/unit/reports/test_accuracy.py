"""A report tells what became of jobs that name no model, and says nothing where none was looked at."""

from __future__ import annotations

from dataclasses import replace

from gpusage.reports import lines
from gpusage.reports.accuracy import UnnamedJobs, count_unnamed_jobs
from gpusage.reports.amounts import Rates
from gpusage.reports.breakdown import ReportRules
from gpusage.reports.report import Period, report_of
from gpusage.store.annotation import UNNAMED
from gpusage.store.rows import Observation
from gpusage_hooks.types import Allocation, Code, DecisionRecord, Figure, Interval, ObservedFigures, Usage
from past_runs import ADA
from records import RECORD, USAGE

ESTIMATE = ObservedFigures(
    gpu_utilization=Figure(interval=Interval(value=0.2, low=0.1, high=0.3), source="3 runs of yours")
)
SHARED = replace(
    RECORD,
    identity=ADA,
    model=None,
    workload=None,
    history_estimates={USAGE.gpu: ESTIMATE},
    decision=replace(RECORD.decision, reasons=(UNNAMED, "3 runs of yours")),
)
OBSERVED = replace(SHARED, mode="observe")
UNSHARED = replace(SHARED, history_estimates={}, decision=replace(RECORD.decision, code=Code.KEEP, reasons=(UNNAMED,)))


def run(record: DecisionRecord, utilization: float) -> Observation:
    usage: Usage = replace(USAGE, granted=Allocation(), alone_s=USAGE.sampled_s, peak_utilization=utilization)
    return Observation(usage=usage, decision=record)


def test_jobs_are_counted_by_what_history_told_and_did() -> None:
    runs = [run(OBSERVED, 0.3), run(OBSERVED, 0.31), run(UNSHARED, 0.9)]
    tally = count_unnamed_jobs([SHARED, OBSERVED, UNSHARED, RECORD], runs, 60.0)
    assert tally == UnnamedJobs(jobs=3, estimated=2, shares=1, withheld=1, checked=2, held=1)


def test_the_report_checks_the_runs_from_which_the_site_learns() -> None:
    """By `learning.least_sampled_s`, as gpusaged counts what history has earned."""
    period, long = Period(since_s=0.0, until_s=1.0), USAGE.sampled_s
    tallies = [
        report_of([OBSERVED], [run(OBSERVED, 0.3)], Rates(), period, ReportRules(least_sampled_s=least_s)).unnamed
        for least_s in (long, long + 1)
    ]
    assert [tally.checked for tally in tallies] == [1, 0]


def test_the_report_speaks_of_jobs_without_a_model_only_where_there_are_such_jobs() -> None:
    period = Period(since_s=0.0, until_s=1.0)
    notes = [
        [note for section in lines.sections(report_of(records, (), Rates(), period)) for note in section.notes]
        for records in ([RECORD], [RECORD, OBSERVED])
    ]
    assert [lines.UNNAMED_RULE in each for each in notes] == [False, True]
