"""The text of a user's e-mail: short, true, and with one line that the user can write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from gpusage.reports.amounts import Rates
from gpusage.reports.report import Period, report_of
from gpusage.reports.user_text import MOST_LINES, NOTHING, UNKNOWN, WIDTH, Change, Writing, change_of, user_text
from gpusage.store.rows import Observation
from gpusage_hooks.types import DecisionRecord, SoloRun, Usage, Workload
from observed import HALF, NOW_S, month, record, usage

PERIOD = Period(since_s=NOW_S - 7 * 86400, until_s=NOW_S, user="ada")
SCRIPTS = Writing(managers_of_scripts=("slurm",), learns=True)
WHOLE = record(1, percent=None)


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An hour ahead of Greenwich, so that the time of the host is not that of the page."""
    with monkeypatch.context() as host:
        host.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


def text_of(observations: list[Observation]) -> str:
    return user_text(report_of([], observations, Rates(), PERIOD), observations, SCRIPTS, 60.0)


def change(decided: DecisionRecord | None = WHOLE, writing: Writing = SCRIPTS, **changes: object) -> Change | None:
    """Return what the user of a run that waits for its loader, but for *changes*, should write."""
    run: Usage = usage(WHOLE, **{"gpu_utilization": 0.2, **changes})
    return change_of(Observation(usage=run, decision=decided), writing, 60.0)


def line(decided: DecisionRecord | None = WHOLE, writing: Writing = SCRIPTS, **changes: object) -> str:
    needed = change(decided, writing, **changes)
    assert needed is not None
    return needed.line


def test_a_month_is_a_short_text_that_ends_with_one_line_to_change() -> None:
    text = text_of([each for each in month() if each.usage.user == "ada"])
    lines = text.split("\n")
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    assert lines[0] == "Your jobs on GPUs, 2023-11-07 to 2023-11-14"
    assert "26 jobs booked 46.0 GPU hours." in lines
    assert "16 had a part of a GPU: 4 kept their price, 3 did not; -11.2 GPU hours freed." in lines
    assert lines[-3:] == [
        "One line to change, for the next job like 105 train2:",
        "  Ask for no GPU (it had gres/gpu:1).",
        "It hardly used one.",
    ]


def test_a_month_of_the_hosts_time_begins_on_its_first_day() -> None:
    begin_s = time.mktime((2026, 10, 1, 0, 0, 0, 0, 0, -1))
    october = replace(PERIOD, since_s=begin_s, until_s=begin_s + 86400)
    text = user_text(report_of([], [], Rates(), october), [], SCRIPTS, 60.0)
    assert text.startswith("Your jobs on GPUs, 2026-10-01 to 2026-10-02\n")


def test_however_long_and_strange_names_are_every_line_fits_and_prints() -> None:
    hostile = usage(WHOLE, job_name="\x1b[2J\r\nSubject: x " + 300 * "y", gpu=90 * "z", gpu_utilization=0.2)
    text = text_of([Observation(usage=replace(hostile, job_id=str(n)), decision=None) for n in range(50)])
    lines = text.split("\n")
    assert len(lines) <= MOST_LINES
    assert all(each.isprintable() and len(each) <= WIDTH for each in lines)


def test_who_had_no_job_is_told_so() -> None:
    assert text_of([]).endswith(NOTHING)


def test_whose_jobs_nobody_could_see_is_not_told_that_there_were_none() -> None:
    report = msgspec.structs.replace(report_of([], [], Rates(), PERIOD), unaccounted=("Slurm keeps no accounting.",))
    assert user_text(report, [], SCRIPTS, 60.0).endswith(UNKNOWN)


def test_where_nothing_was_idle_there_is_nothing_to_change() -> None:
    busy = Observation(usage=usage(WHOLE, gpu_utilization=1.0), decision=WHOLE)
    assert text_of([busy]).endswith("Nothing that was measured asks for a change.")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "#GPUSAGE utilization=20@64"),
        ({"gpu_utilization": 0.001}, "Ask for no GPU (it had gres/gpu:1)."),
        ({"cpu_s": 2 * 7200.0}, "Ask for more than 2 processors."),
    ],
)
def test_what_a_run_of_a_model_showed_is_what_to_write(changes: dict[str, object], expected: str) -> None:
    assert line(**changes) == expected


def test_a_job_without_a_model_lets_its_run_show_it_where_the_site_lets_it() -> None:
    unnamed = replace(WHOLE, model=None, workload=None)
    assert line(None) == line(unnamed) == "#GPUSAGE learn=on"
    assert line(None, replace(SCRIPTS, learns=False)) == "#GPUSAGE model=FILE,batch=N"


def test_a_manager_that_reads_no_scripts_takes_options() -> None:
    options = Writing(managers_of_scripts=(), learns=True)
    assert (line(None, options), line(WHOLE, options)) == ("--learn", "--utilization=20@64")


@pytest.mark.parametrize("unsure", [{"sampled_s": 30.0}, {"alone_s": 100.0}, {"granted": HALF}])
def test_nothing_is_asked_of_the_user_where_nothing_would_help(unsure: dict[str, object]) -> None:
    assert change(**unsure) is None


def test_a_comment_that_names_the_model_is_the_place_where_keys_count() -> None:
    needed = change()
    assert needed is not None
    assert needed.notes[0] == "If its comment names its model, write it there: ,utilization=20@64"


def test_a_job_that_keeps_its_gpu_busy_has_nothing_to_change() -> None:
    assert change(gpu_utilization=0.9) is None


def test_who_wrote_it_already_has_nothing_to_change() -> None:
    written = replace(WHOLE, workload=Workload(batch_size=64, alone=SoloRun(utilization=0.2)))
    assert change(written) is None
