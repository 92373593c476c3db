"""A report on a long time is the sum of its parts, also of parts that were kept as JSON."""

from __future__ import annotations

import msgspec
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.reports.amounts import Rates
from gpusage.reports.breakdown import USUAL_RULES, ReportRules
from gpusage.reports.jobs import runs_by_job
from gpusage.reports.joining import joined
from gpusage.reports.report import Period, Report, finished, part_of, report_of
from observed import DAY_S, NOW_S, month, month_before

PERIOD = Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S)
RATES = Rates(per_hour={"v100-sxm2-16gb": 3.0})
RULES = ReportRules(find_gpu=builtin_catalogue().find)


def stored(part: Report) -> Report:
    return msgspec.json.decode(msgspec.json.encode(part), type=Report)


@pytest.mark.parametrize("rules", [USUAL_RULES, RULES])
def test_the_sum_of_each_job_s_report_is_the_report_of_all(rules: ReportRules) -> None:
    jobs, jobs_before = ([*runs_by_job(runs)][::-1] for runs in (month(), month_before()))
    parts = [part_of([each.decision for each in runs if each.decision], runs, rules) for runs in jobs]
    before = joined([part_of([], runs, rules) for runs in jobs_before])
    # Twice joined, as days of hours.
    actual = finished(joined([stored(joined(parts[:15])), stored(joined(parts[15:]))]), stored(before), RATES, PERIOD)
    records = [each.decision for each in month() if each.decision]
    expected = report_of(records, [*month(), *month_before()], RATES, PERIOD, rules)

    def rounded(value: object) -> object:
        if isinstance(value, float):
            return round(value, 6)
        if isinstance(value, dict):
            return {key: rounded(each) for key, each in value.items()}
        return [rounded(each) for each in value] if isinstance(value, list) else value

    left, right = (msgspec.json.decode(msgspec.json.encode(each)) for each in (actual, expected))
    # Durations of a job show only beside its other runs.
    for report in (left, right):
        for name in ("promises_enforced", "promises_withheld"):
            del report[name]
        for totals in (report["totals"], report["previous"]):
            del totals["promises"]
    assert rounded(left) == rounded(right)
