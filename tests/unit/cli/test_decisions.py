"""`gpusage decisions`: from a record, from a mark alone, from nothing; tests/slurm has it on a real Slurm."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpusage.cli import decisions, job_commands
from gpusage.cli.decision_lines import document, lines
from gpusage.decisions.advisor import make_advisor
from gpusage.settings.configuration import Configuration
from gpusage.store.opening import open_store
from gpusage_hooks.errors import PluginError, RequestError
from gpusage_hooks.managers import Context, ManagerSettings
from gpusage_hooks.types import AnnotatedJob, Decoding
from gpusage_slurm.settings import SlurmSettings
from records import RECORD, USAGE, annotation_of_record

NUMBERED = replace(RECORD, number="69215f4a0c3e", origin="ada")
JOB = AnnotatedJob(
    job_id="12_3",
    manager="slurm",
    user="ada",
    state="waiting",
    mark=f"site; {annotation_of_record(NUMBERED)}",
    waits_for="Resources",
)
FORGED = replace(JOB, job_id="13", user="mallory")
"""A job that carries the number of another user's decision."""


@pytest.fixture
def show_decisions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return what runs the command where one workload manager has one job, and the store one record."""
    (tmp_path / "c.toml").write_text(f'[store]\nurl = "sqlite:///{tmp_path}/d.db"\n')
    monkeypatch.setenv("GPUSAGE_CONFIG", str(tmp_path / "c.toml"))
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        store.record_all([NUMBERED, replace(NUMBERED, number="69215f4a0c3f", origin="uid 7")])

    def find_jobs(*, job_id: str, user: str) -> list[AnnotatedJob]:
        jobs = [FORGED, JOB] if user == job_id == "" else [JOB]
        return jobs if job_id in ("", JOB.job_id) and user in ("", JOB.user) else []

    monkeypatch.setattr(decisions, "_managed_jobs", find_jobs)

    def run(*arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(job_commands.decisions, [*arguments, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        answer: dict[str, Any] = json.loads(done.output)
        return answer

    return run


def test_a_job_is_told_of_by_its_record(show_decisions: Callable[..., dict[str, Any]]) -> None:
    (decision,) = show_decisions("12_3")["decisions"]
    assert decision["job"] == {
        "id": "12_3", "manager": "slurm", "user": "ada", "state": "waiting", "waits_for": "Resources",
    }  # fmt: skip
    assert (decision["source"], decision["number"], decision["code"]) == ("record", "69215f4a0c3e", "REWRITE")
    assert (decision["reasons"], decision["model"]) == (["one reason", "another"], "resnet50.onnx")
    assert decision["workload"]["batch_size"] == 64
    assert decision["need"]["gpu"] == "v100-sxm2-16gb"


def test_a_job_that_ended_has_its_usage(show_decisions: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Tasks of an array have one decision, and each its own usage."""
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        store.record_usage([replace(USAGE, job_id=JOB.job_id), replace(USAGE, job_id="12_4")])
    (decision,) = show_decisions("12_3")["decisions"]
    (usage,) = decision["usage"]
    assert (usage["job_id"], usage["gpu_utilization"], usage["ask_next_time"]) == ("12_3", 0.31, "more processors")
    assert [len(decision["usage"]) for decision in show_decisions("--last", "2")["decisions"]] == [0, 2]
    done = CliRunner().invoke(job_commands.decisions, ["12_3"], catch_exceptions=False)
    assert " asked gres/gpu:1, got 40 % of one v100-sxm2-16gb, used 31 % of its time, 1.9 GiB," in " ".join(
        done.output.split()
    )


def test_the_last_decisions_are_the_stores(show_decisions: Callable[..., dict[str, Any]]) -> None:
    assert [decision["number"] for decision in show_decisions("--last", "5")["decisions"]] == [
        "69215f4a0c3f",
        "69215f4a0c3e",
    ]
    assert [decision["number"] for decision in show_decisions("--user", "7")["decisions"]] == ["69215f4a0c3f"]


def test_the_last_decisions_name_their_jobs(show_decisions: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """By the mark of a job that the manager remembers, or by a run; else nobody knows."""

    def titles() -> list[str]:
        shown = CliRunner().invoke(job_commands.decisions, ["--last", "5"], catch_exceptions=False).output
        return [line.partition(": ")[0] for line in shown.splitlines() if line.startswith("Job ")]

    assert show_decisions("--last", "1")["decisions"][0]["job"] is None
    assert titles() == ["Job of unknown id", "Job 12_3 of ada"]
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        runs = [replace(USAGE, job_id=f"40_{task}", number="69215f4a0c3f") for task in range(5)]
        store.record_usage([*runs, replace(USAGE, job_id="12_3", number="69215f4a0c3e")])
    assert titles() == ["Job 40_0, 40_1, 40_2 and 2 more", "Job 12_3"]


def test_who_may_not_read_the_store_gets_the_marks(
    show_decisions: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """A folder in the store's place is as unreadable for root as a private one for a user."""
    (tmp_path / "c.toml").write_text(f'[store]\nurl = "sqlite:///{tmp_path}"\n')
    for (decision,) in (show_decisions("12_3")["decisions"], show_decisions("--user", "ada")["decisions"]):
        assert (decision["source"], decision["before"], decision["after"]) == ("mark", "gres/gpu:1", "gres/mps:40")
        assert (decision["reasons"], decision["mode"]) == (["one reason; another"], "enforce")
        assert decision["decided_at_s"] == 0x69215F4A
    if os.geteuid():
        return
    done = CliRunner().invoke(job_commands.decisions, ["--last", "5"])
    assert "must be readable" in str(done.exception)


def test_a_job_that_nobody_knows_is_one_sentence(show_decisions: Callable[..., dict[str, Any]]) -> None:
    assert show_decisions
    done = CliRunner().invoke(job_commands.decisions, ["99"])
    assert "Job '99' must be one that a workload manager here remembers" in str(done.exception)


def test_a_job_is_told_of_in_plain_words() -> None:
    assert list(lines(JOB, NUMBERED)) == [
        "Job 12_3 of ada: waiting, waits for Resources",
        "  gres/gpu:1 -> gres/mps:40: rewritten",
        "  - one reason",
        "  - another",
        "  model resnet50.onnx, batch 64, infer, fp32",
        "  predicted on v100-sxm2-16gb: SM activity 50 % (25-75), 0.0 GiB (0.0-0.0)",
        f"  record 69215f4a0c3e, {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(RECORD.decided_at_s))}",
    ]
    bare = replace(JOB, mark="", waits_for="")
    assert "no mark that this gpusage reads" in list(lines(bare, None))[1]


def test_what_is_not_as_usual_in_a_run_is_told() -> None:
    assert RECORD.workload is not None
    run = replace(RECORD.workload, mode="infer", generate=Decoding(prompt_tokens=512, new_tokens=128), compile=True)
    (line,) = (line for line in lines(JOB, replace(NUMBERED, workload=run)) if line.startswith("  model"))
    assert line.endswith("generate 512+128, compile on")


def test_what_has_no_number_says_so(show_decisions: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Records of the store's first schema, and jobs that gpusaged gave no answer about."""
    assert next(lines(None, RECORD)).endswith(", record -")
    unanswered = replace(JOB, mark="site; gpusage KEEP | gpusaged did not come to it in time")
    assert [*lines(unanswered, None)][1:] == [
        "  its request: kept as requested",
        "  - gpusaged did not come to it in time",
    ]
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        store.record(RECORD)
    assert show_decisions("--last", "1")["decisions"][0]["number"] is None
    assert [record for _, record, *_ in decisions._with_records([unanswered])] == [None]


def test_what_was_only_recorded_says_so() -> None:
    observed = replace(NUMBERED, mode="observe")
    shown = list(lines(replace(JOB, mark=str(annotation_of_record(observed))), None))
    assert shown[1] == "  gres/gpu:1 -> gres/mps:40: would have been rewritten (mode observe)"
    assert shown[-1].startswith("  record 69215f4a0c3e, 2025-11-2")


def test_a_job_that_was_turned_back_says_so_whatever_its_record_has() -> None:
    mark = replace(
        annotation_of_record(NUMBERED),
        code="BACK",
        before="gres/mps:40",
        after="gres/gpu:1",
        reasons="it never started",
    )
    actual = document(replace(JOB, mark=str(mark)), NUMBERED)
    assert (actual["code"], actual["before"], actual["after"]) == ("BACK", "gres/mps:40", "gres/gpu:1")
    assert actual["reasons"] == ["it never started", "one reason", "another"]


def test_a_users_text_cannot_act_on_the_terminal() -> None:
    hostile = replace(NUMBERED, model="\x1b]0;owned\x07")
    assert "\x1b" not in "".join(lines(JOB, hostile))


TROUBLE = "Plugin 'broken' must answer; it did not."


@pytest.mark.parametrize(
    "error", [PluginError(TROUBLE, plugin="broken", hook="find_jobs"), RequestError(TROUBLE)], ids=["plugin", "manager"]
)
def test_a_manager_at_fault_is_mentioned_and_the_others_are_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    class Hooks:
        def describe_model_names(self) -> list[str]:
            return []

        def find_jobs(self, manager: str, job_id: str, user: str, context: Context) -> list[AnnotatedJob]:
            if manager == "broken":
                raise error
            assert (job_id, user, context.settings_of(SlurmSettings).limit_ms) == ("12_3", "", 70)
            return [JOB]

    settings = {"broken": ManagerSettings(), "slurm": SlurmSettings(limit_ms=70)}
    advisor = replace(make_advisor(), hooks=Hooks())  # type: ignore[arg-type]
    monkeypatch.setattr(decisions, "make_advisor", lambda: advisor)
    monkeypatch.setattr(decisions, "read_configuration", lambda: (Configuration(managers=settings), ""))
    assert decisions.of_job("12_3") == ((JOB, None, (), ("12_3",)),)
    assert capsys.readouterr().err == f"gpusage: warning: {TROUBLE}\n"


def test_a_job_that_no_manager_remembers_is_found_by_its_run(
    show_decisions: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Managers forget; the store has a job for `keep_days`. An id is used again after a while."""
    with closing(open_store(f"sqlite:///{tmp_path}/d.db")) as store:
        first = replace(USAGE, job_id="99", number="69215f4a0c3e")
        store.record_usage([first, replace(first, number="69215f4a0c3f", started_at_s=1.8e9, ended_at_s=1.8e9 + 9)])
    records = show_decisions("99")["decisions"]
    assert [(each["number"], each["job_ids"], len(each["usage"])) for each in records] == [
        ("69215f4a0c3e", ["99"], 1),
        ("69215f4a0c3f", ["99"], 1),
    ]
