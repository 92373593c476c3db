"""The lines with which a report opens, and the sums that they rest on."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from gpusage.reports.accuracy import runs_with_promise
from gpusage.reports.amounts import Amounts, Rates
from gpusage.reports.brief import LEAST_SHARES, brief, next_step
from gpusage.reports.joining import joined
from gpusage.reports.lines import capacity_hours, sections
from gpusage.reports.report import Period, Report, report_of
from gpusage.reports.summary import (
    PartitionTally,
    WeekTally,
    hurt_jobs,
    idle_jobs,
    share_costs,
    tally_partitions,
    tally_weeks,
    week_of,
)
from gpusage.reports.user_text import Writing, user_text
from gpusage.store.rows import Observation
from gpusage_hooks.units import DAY_S, HOUR_S
from observed import HALF, NOW_S, month, record, usage

MONDAY_S = 1_699_833_600.0
"""2023-11-13, 00:00 UTC."""
PERIOD = Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S)


def of_month(**changes: object) -> Report:
    report = report_of([], [*month()], Rates(), PERIOD)
    return msgspec.structs.replace(report, **changes)  # type: ignore[arg-type]


def withheld(number: int, **rest: object) -> Observation:
    """Return a run on a whole GPU whose share was withheld."""
    decided = record(number, mode="observe")
    return Observation(usage=usage(decided, **rest), decision=decided)


def test_a_week_begins_on_monday_and_a_period_has_a_part_of_its_capacity() -> None:
    assert week_of(MONDAY_S) == week_of(MONDAY_S + 7 * DAY_S - 1) == MONDAY_S
    assert week_of(MONDAY_S - 1) == MONDAY_S - 7 * DAY_S
    # The period ends at 22:13:20 on Tuesday.
    report = of_month(gpu_count=4)
    assert capacity_hours(report, MONDAY_S, MONDAY_S + 7 * DAY_S) == pytest.approx(4 * (NOW_S - MONDAY_S) / HOUR_S)
    assert capacity_hours(report, MONDAY_S - 7 * DAY_S, MONDAY_S) == pytest.approx(4 * 7 * 24)


def test_days_count_with_the_gpus_that_the_clusters_had_then_and_others_with_those_of_today() -> None:
    """Two of seven days had 2 and 10 GPUs; of a noted day, half is in the period that begins at its noon."""
    days = {f"{MONDAY_S - count * DAY_S:.0f}": gpus for count, gpus in ((2, 10), (1, 2))}
    report = of_month(gpu_count=4, day_gpu_counts=days)
    assert capacity_hours(report, MONDAY_S - 7 * DAY_S, MONDAY_S) == pytest.approx(24 * (5 * 4 + 10 + 2))
    assert capacity_hours(report, MONDAY_S - DAY_S / 2, MONDAY_S) == pytest.approx(12 * 2)
    assert capacity_hours(of_month(day_gpu_counts=days), MONDAY_S - 7 * DAY_S, MONDAY_S) == 0.0


def test_weeks_hold_all_runs_and_those_of_two_parts_add_up() -> None:
    runs = [*month()]
    every = tally_weeks(runs, 60.0)
    assert sum(week.job_count for week in every) == 40
    parts = [tally_weeks(part, 60.0) for part in (runs[:15], runs[15:])]
    assert [(week.since_s, week.job_count) for week in joined(parts)] == [
        (week.since_s, week.job_count) for week in every
    ]


def test_a_director_reads_the_use_of_the_whole_cluster() -> None:
    first = brief(of_month(gpu_count=1)).notes[0]
    assert first.startswith("Use: 1 GPUs have 720 hours: 10 % booked, 2 % used, 33 % of the booked hours not seen; ")
    assert first.endswith("used by week: 4 %, 22 %.")
    assert "no capacity is known here" in brief(of_month()).notes[0]


def test_where_no_gpu_is_shared_it_says_for_how_many_jobs_one_could_be() -> None:
    alone = report_of([], [], Rates(), PERIOD)
    assert "Freed: nothing, for no job that was seen had a share or could have had one." in brief(alone).notes
    could = msgspec.structs.replace(alone, if_shared_count=3)
    assert "Freed: nothing yet; 3 jobs would have had a part if GPUs could be shared." in brief(could).notes


def test_those_who_were_hurt_come_before_those_who_would_have_been_and_have_names() -> None:
    starved = withheld(1, memory_bytes=100 * 2**30)
    decided = record(2)
    out = Observation(usage=usage(decided, granted=HALF, outcome="out_of_memory"), decision=decided)
    fine = withheld(3, gpu_utilization=0.5)
    busy = withheld(4, gpu_utilization=0.99)
    jobs = hurt_jobs(runs_with_promise([starved, out, fine, busy], 60.0), 60.0)
    assert [(job.job_id, job.had_share, job.why) for job in jobs] == [
        ("102", True, "ran out of memory"),
        ("101", False, "took more memory than its share has"),
        ("104", False, "was busier than predicted"),
    ]
    assert jobs[0].user == "ada"
    line = brief(report_of([], [starved, out, fine, busy], Rates(), PERIOD)).notes[3]
    assert line.startswith("Hurt: 1 on shares, 2 more would have been: 102 train2 of ada ran out of memory; 101 train1")


def test_a_partition_counts_the_shares_that_were_withheld_in_it() -> None:
    runs = [withheld(1, gpu_utilization=0.5), withheld(3, gpu_utilization=0.99), withheld(5, sampled_s=0.0)]
    every = [*runs, Observation(usage=usage(record(7, percent=None)), decision=None)]
    (gpu,) = tally_partitions(every, runs_with_promise(every, 60.0))
    assert gpu == PartitionTally(
        partition="gpu", job_count=4, checks={"kept": 1, "broken": 1, "unknown": 1}, users={"ada": 1}
    )


def tally(name: str, fulfilled: int, broken: int) -> PartitionTally:
    checks = {"kept": fulfilled, "broken": broken, "unknown": 2}
    return PartitionTally(partition=name, job_count=400, checks=checks, users={"ada": broken} if broken else {})


@pytest.mark.parametrize(
    ("partitions", "enforce_in", "line"),
    [
        (
            [tally("gpu", LEAST_SHARES - 2, 1)],
            (),
            "observe on; one partition needs 20 shares that could be",
        ),
        (
            [tally("gpu", 58, 3), tally("test", 59, 1)],
            (),
            'mode = "enforce" and enforce_in = ["test"] in gpusage.toml: of 400 jobs there 62 would share, 1 at risk (',
        ),
        (
            [tally("gpu", 58, 3), tally("test", 59, 1)],
            ("test",),
            'mode = "enforce" and enforce_in = ["test", "gpu"]',
        ),
        ([tally("gpu", 50, 20)], (), "observe on; partition gpu is the safest: of 400 jobs there 72 would share, 20"),
        ([tally("", 50, 0)], (), "observe on; partition of no known name"),
    ],
)
def test_the_next_line_is_the_safest_partition_once_enough_was_seen(
    partitions: list[PartitionTally], enforce_in: tuple[str, ...], line: str
) -> None:
    assert next_step("observe", enforce_in, partitions).startswith(line)
    assert next_step("enforce", (), partitions).startswith("nothing to write")


def test_what_shares_cost_is_typical_and_at_worst() -> None:
    decided = record(1)
    run = Observation(usage=usage(decided, granted=HALF), decision=decided)
    lost = replace(run, usage=replace(run.usage, outcome="out_of_memory"))
    costs = share_costs([run, lost, withheld(2)])
    assert (costs.hours, costs.whole_hours) == (2.0, 1.6)
    assert costs.least_whole_hours == pytest.approx(2.0 / 1.5)


def test_a_job_counts_as_idle_with_the_longest_time_in_which_it_did_nothing() -> None:
    lengths_s = (None, 0.0, 900.0, 1000.0, 7201.0)
    runs = [withheld(number, longest_idle_s=length_s) for number, length_s in enumerate(lengths_s)]
    twice = replace(runs[3], usage=replace(runs[3].usage, gpu_count=2))
    idle = idle_jobs([*runs[:3], twice, runs[4]])
    assert idle.job_counts == {"900": 2, "7200": 1}
    assert idle.hours == {"900": pytest.approx((2 * 1000 + 7201) / 3600), "7200": pytest.approx(7201 / 3600)}


def test_idle_jobs_and_money_that_lacks_a_price_are_said() -> None:
    quiet = withheld(1, gpu_utilization=0.0, longest_idle_s=3600.0)
    unknown = withheld(2, gpu="")
    forgotten = withheld(3, gpu_utilization=0.0, longest_idle_s=7920.0)
    runs = [quiet, unknown, forgotten]
    report = report_of([], runs, Rates(per_hour={"v100-sxm2-16gb": 3.0}), PERIOD)
    notes = [note for section in sections(report) for note in section.notes]
    idle = ["Did nothing at all for over 15 min at a time: 2 jobs, 3.20 GPU hours."]
    idle.append("Of these, for over 2 h at a time: 1 job, 2.20 GPU hours.")
    assert [note for note in notes if "at a time: " in note] == idle
    assert any(note.endswith("without one: GPUs of no known type (1 runs).") for note in notes)
    lines = user_text(report, runs, Writing(managers_of_scripts=("slurm",), learns=True), 60.0).splitlines()
    assert [line for line in lines if "at a time: " in line] == idle


def test_weeks_of_other_days_join_by_their_monday() -> None:
    hours = Amounts(booked=1.0)
    one = WeekTally(since_s=MONDAY_S, job_count=1, hours=hours)
    assert joined([(one,), (one,)]) == (msgspec.structs.replace(one, job_count=2, hours=Amounts(booked=2.0)),)
