"""`gpusage report`: whose jobs, where the page goes, and what is said where the store cannot be read."""

from __future__ import annotations

import html
import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpusage.cli import job_commands
from gpusage.cli.report import show_report
from gpusage.reports.report import Period
from gpusage.service import daily_reports
from gpusage.store.opening import open_store
from gpusage_slurm import scontrol
from observed import DAY_S, NOW_S, fill, record, usage


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of the store that the commands read; it is not there yet."""
    url = f"sqlite:///{tmp_path}/d.db"
    (tmp_path / "c.toml").write_text(f'[store]\nurl = "{url}"\n')
    monkeypatch.setenv("GPUSAGE_CONFIG", str(tmp_path / "c.toml"))
    monkeypatch.setattr(scontrol, "is_slurm_host", lambda: False)  # another test's Slurm may run on this host
    return url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(job_commands.report, arguments)


def test_without_a_store_nothing_was_decided_and_that_is_said(url: str) -> None:
    done = run()
    assert done.exit_code == 0
    assert "No decision was recorded in this period." in done.output
    assert f"Thestore,{url},isnotthere:" in "".join(done.output.split())


def test_of_an_empty_store_it_is_said_where_it_is(url: str) -> None:
    with closing(open_store(url)) as store:
        store.record_all([])
    assert f"Thestoreis{url}." in "".join(run().output.split())


def test_only_what_is_recent_enough_counts(url: str) -> None:
    with closing(open_store(url)) as store:
        fill(store)
    assert json.loads(run("--json").output)["decisions"] == []  # the month is of 2023
    done = run("--since", "36500d", "--json").output
    assert json.loads(done)["run_count"] == 40


def test_a_month_is_reported_without_what_came_after_it(url: str) -> None:
    late = usage(record(1), job_id="december", ended_at_s=NOW_S + 30 * DAY_S)
    with closing(open_store(url)) as store:
        fill(store)
        store.record_usage([late])
    document = json.loads(run("--month", "2023-11", "--json").output)
    assert document["run_count"] == 40
    december = json.loads(run("--month", "2023-12", "--json").output)
    assert (december["run_count"], december["previous"]["job_count"], december["decisions"]) == (1, 40, [])


@pytest.mark.parametrize("month", ["2023-13", "2999-01", "soon", "1970-01"])
def test_what_is_no_month_that_has_begun_is_refused(month: str) -> None:
    done = run("--month", month)
    assert (done.exit_code, "must be a month that has begun, such as 2026-10" in done.output) == (2, True)


def test_a_month_and_a_time_are_not_both_reported() -> None:
    done = run("--month", "2023-11", "--since", "3d")
    assert (done.exit_code, "must be without '--since'; got both." in done.output) == (2, True)


def test_a_user_is_reported_alone(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_store(url)) as store:
        fill(store)
    show_report(Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S, user="bob"), None, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert {job["user"] for job in document["worst"]} == {"bob"}
    assert document["schema"] == "gpusage.report/1"
    assert sum(each["count"] for each in document["decisions"]) == document["run_count"] == 14  # of 40, each third


def test_a_user_is_known_by_id_as_well(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Slurmctld tells an id, and usage has the name."""
    decided = replace(record(1), origin="uid 0")
    with closing(open_store(url)) as store:
        store.record(decided)
        store.record_usage([usage(decided, user="root")])
    for user in ("0", "root"):
        show_report(Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S, user=user), None, as_json=True)
        document = json.loads(capsys.readouterr().out)
        assert (document["run_count"], len(document["decisions"])) == (1, 1)


@pytest.mark.usefixtures("url")
def test_the_page_is_written_and_named(tmp_path: Path) -> None:
    done = run("-o", str(tmp_path / "r.html"))
    assert done.stderr == f"Written: {tmp_path}/r.html\n"
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert "must be a file that you may write" in str(run("-o", str(tmp_path / "no" / "r.html")).exception)


def test_who_may_not_read_the_store_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in the store's place is as unreadable for root as a private one for a user."""
    (tmp_path / "c.toml").write_text(f'[store]\nurl = "sqlite:///{tmp_path}"\n')
    monkeypatch.setenv("GPUSAGE_CONFIG", str(tmp_path / "c.toml"))
    monkeypatch.setattr(daily_reports, "read_accounting", lambda *_: pytest.fail("the accounting may take minutes"))
    assert "Run this as root or as the daemon's user" in str(run().exception)


def test_a_users_text_cannot_act_on_the_terminal(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = record(1, percent=None)
    with closing(open_store(url)) as store:
        store.record_usage([usage(hostile, job_name="\x1b]0;owned\x07", gpu_utilization=0.1)])
    show_report(Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S, user=""), None, as_json=False)
    assert "\x1b]0" not in capsys.readouterr().out


def test_where_the_accounting_does_not_answer_that_is_said(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host of Slurm's whose slurmctld is away."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho no controller >&2; exit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(scontrol, "is_slurm_host", lambda: True)
    with closing(open_store(url)) as store:
        fill(store)
    show_report(Period(since_s=NOW_S - 30 * DAY_S, until_s=NOW_S), None, as_json=False)
    shown = " ".join(capsys.readouterr().out.split())
    trouble = "Command 'scontrol show config' must succeed; got: no controller"
    assert f"Jobs that no node sampled are not counted: {trouble}" in shown


def test_figures_of_two_clusters_are_said_to_be_mixed_in_every_form(url: str, tmp_path: Path) -> None:
    with closing(open_store(url)) as store:
        store.note_cluster(time.time() // DAY_S * DAY_S, "slurm", "alpha", 4)
        assert "figures mix" not in run().output
        store.note_cluster(time.time() // DAY_S * DAY_S, "slurm", "beta", 4)
    mixed = "figures mix several; got slurm 'alpha' and slurm 'beta' in the last 3 days."
    assert mixed in " ".join(run().output.split())
    document = json.loads(run("--json").output)
    assert mixed in document["mixed_clusters"] == document["in_short"][0]
    run("-o", str(tmp_path / "r.html"))
    assert mixed in html.unescape((tmp_path / "r.html").read_text())


def test_a_text_is_of_one_user_and_goes_nowhere_else(url: str, tmp_path: Path) -> None:
    others = (["-o", str(tmp_path / "r.html")], ["--json"], ["--by", "user"])
    for options in ([], *(["--user", "ada", *other] for other in others)):
        done = run("--text", *options)
        assert (done.exit_code, "must come with '--user' and without '--by', '-o'" in done.output) == (2, True)
    assert "None of your jobs held a GPU" in run("--text", "--user", "ada").output
    assert not Path(url.removeprefix("sqlite:///")).exists()


def test_a_time_that_is_none_is_refused() -> None:
    assert "must be a time such as" in run("--since", "soon").output
