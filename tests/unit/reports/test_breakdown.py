"""GPU hours by user, account, partition and model: every job stands in one row, and nothing unseen is idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.reports.amounts import Rates, total
from gpusage.reports.breakdown import NAMES, USUAL_RULES, Dimension, break_down
from gpusage.reports.lines import MOST_GROUPS, Section, sections
from gpusage.reports.report import Period, report_of
from gpusage.store.rows import Observation
from observed import month, record, usage

MONTH = [*month()]


def section(observations: list[Observation], by: Dimension) -> Section:
    report = report_of([], observations, Rates(), Period(since_s=0.0, until_s=1.0))
    (by_group,) = (each for each in sections(report, [by]) if each.title == f"GPU hours by {by}")
    return by_group


@pytest.mark.parametrize("dimension", NAMES)
def test_the_groups_add_up_to_all_jobs(dimension: Dimension) -> None:
    report = report_of([], MONTH, Rates(), Period(since_s=0.0, until_s=1.0))
    groups = report.groups[dimension]
    assert sum(each.job_count for each in groups) == report.all_jobs.job_count == 40
    for part in ("booked", "used", "idle", "unseen", "requested"):
        whole = getattr(report.hours, part)
        assert getattr(total(each.hours for each in groups), part) == pytest.approx(whole)
        assert getattr(report.all_jobs.hours, part) == pytest.approx(whole)
    assert report.unseen.hours.booked == pytest.approx(report.hours.unseen)


def test_a_job_without_a_decision_counts_with_the_gpus_that_its_node_saw() -> None:
    unmarked = usage(record(1, percent=None), number="", gpu_count=4, user="eve", partition="")
    groups = break_down([Observation(usage=unmarked, decision=None)], USUAL_RULES).groups
    assert {dimension: [each.name for each in groups[dimension]] for dimension in NAMES} == {
        "user": ["eve"],
        "account": ["physics"],
        "partition": [""],
        "model": [""],
        "gpu": ["v100-sxm2-16gb"],
    }
    assert groups["user"][0].hours.booked == 8.0


def test_an_older_release_told_no_account_and_the_submission_did() -> None:
    decided = record(1)
    assert decided.identity is not None
    decided = replace(decided, identity=replace(decided.identity, account="chemistry"))
    observed = Observation(usage=usage(decided, account=""), decision=decided)
    assert [each.name for each in break_down([observed], USUAL_RULES).groups["account"]] == ["chemistry"]


def test_a_table_ends_with_all_jobs_and_with_what_was_not_seen() -> None:
    rows = section(MONTH, "user").rows
    assert [row[0] for row in rows] == ["ada", "bob", "all", "of all, not seen"]
    assert rows[-1][3] == rows[-1][6] == rows[-2][6]  # booked, and not seen
    assert rows[-1][4] == rows[-1][5] == "0.00"


def test_who_could_have_shared_is_shown_with_the_price() -> None:
    advised = record(1, mode="advise", percent=50)
    row = section([Observation(usage=usage(advised), decision=advised)], "model").rows[0]
    hours = ("2.00", "2.00", "1.00", "1.00", "0.00")
    assert row == ("resnet50.onnx", "1", *hours, "1", "25 %, 50 at worst", "-0.50, -1.00 at worst")


def test_a_run_on_two_nodes_with_one_gpu_each_could_not_have_shared() -> None:
    light = usage(
        record(1, percent=None), number="", gpu_count=1, gpu_utilization=0.1, peak_utilization=0.2, memory_bytes=2**31
    )
    rules = replace(USUAL_RULES, find_gpu=builtin_catalogue().find)
    both = [Observation(usage=replace(light, sampled_on=node), decision=None) for node in ("n1", "n2")]
    assert break_down(both[:1], rules).all_jobs.possible is not None
    assert break_down(both, rules).all_jobs.possible is None


def test_the_small_groups_in_one_row_could_share_what_they_could_share() -> None:
    advised = record(1, mode="advise", percent=50)
    light = [usage(advised, user=f"u{n:02}", job_id=str(n)) for n in range(MOST_GROUPS + 2)]
    others, every = section([Observation(usage=each, decision=advised) for each in light], "user").rows[-3:-1]
    assert (others[0], others[-3:]) == ("2 others", ("2", "25 %, 50 at worst", "-1.00 to 1.50, -2.00 at worst"))
    assert (every[0], every[-3:]) == ("all", ("22", "25 %, 50 at worst", "-11.0 to 16.5, -22.0 at worst"))


def test_of_many_groups_the_small_ones_are_one_row() -> None:
    runs = [usage(record(n, percent=None), user=f"u{n:02}", ended_at_s=1e9 * (50 - n)) for n in range(MOST_GROUPS + 3)]
    rows = section([Observation(usage=each, decision=None) for each in runs], "user").rows
    assert [row[0] for row in rows[:2]] == ["u00", "u01"]
    assert [row[:2] for row in rows[-3:-1]] == [("3 others", "3"), ("all", "23")]
