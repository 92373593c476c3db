"""From letters to usage, with what Slurm knows of each job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.node.sampler.usage_reports import append_usage_reports
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.jobs.queue import PROGRAM_MISSING
from gpusage_slurm.usage.collection import collect_usage
from records import USAGE


def row(state: str, exit_code: str = "0:0", *, job: str = "7", user: str = "ada", name: str = "train") -> str:
    """Return the columns of a job, as `squeue` prints them before its mark."""
    return f"{job:64}{job:16}{user:64}{state:16}{exit_code:16}{name:128}{'1000':16}{'physics':128}{'gpu':128}"


ROW = row("TIMEOUT")
ADMIN_COMMENT_BYTES = 1100
MARK = "site; gpusage 69215f4a0c3e KEEP gres/gpu:1 | why"
KNOWN = replace(USAGE, user_id="1000", account="physics", partition="gpu", sampled_on="n1")
MEASURED = replace(USAGE, number="", user="", job_name="", outcome="unknown", gpu="Tesla V100-SXM2-16GB")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what each command of Slurm's answers; one without an answer does not know the job."""
    answers = {"scontrol": f"NodeName=n1 Comment={append_usage_reports('', [MEASURED], MEASURED.ended_at_s)} Extra="}

    def run(*words: str, **_: float) -> str:
        if words[0] not in answers:
            message = "slurm_load_jobs error: Invalid job id specified"
            raise RequestError(message)
        inputs = [word.partition("=")[2] for word in words if word.startswith("--delimiter=")]
        return answers[words[0]].replace("~", inputs[0]) if inputs else answers[words[0]]

    def run_bytes(*words: str) -> bytes:
        return run(*words).encode("utf-8", "surrogateescape")

    monkeypatch.setattr(scontrol, "run", run)
    monkeypatch.setattr(scontrol, "run_bytes", run_bytes)
    return answers


def test_slurm_tells_whose_job_it_was_and_how_it_ended(answers: dict[str, str]) -> None:
    answers["squeue"] = f"{ROW}{MARK:{ADMIN_COMMENT_BYTES}}\n"
    assert collect_usage(builtin_catalogue()) == (replace(KNOWN, outcome="timed_out"),)


def test_a_job_whose_epilog_still_runs_is_told_of_once_slurm_says_how_it_ended(answers: dict[str, str]) -> None:
    """Told of too early, its outcome stayed unknown for good."""
    answers["squeue"] = f"{row('COMPLETING')}{MARK:{ADMIN_COMMENT_BYTES}}\n"
    assert collect_usage(builtin_catalogue()) == ()
    answers["squeue"] = f"{ROW}{MARK:{ADMIN_COMMENT_BYTES}}\n"
    assert [usage.outcome for usage in collect_usage(builtin_catalogue())] == ["timed_out"]


def test_a_job_that_slurmctld_has_forgotten_is_asked_of_the_accounting(answers: dict[str, str]) -> None:
    answers["sacct"] = f"7~7~ada~CANCELLED by 1000~0:15~train~1000~physics~gpu~{MARK}"
    assert collect_usage(builtin_catalogue()) == (replace(KNOWN, outcome="cancelled"),)


def test_a_job_that_nobody_knows_is_left_out(answers: dict[str, str]) -> None:
    assert "squeue" not in answers
    assert collect_usage(builtin_catalogue()) == ()


def test_a_job_without_a_mark_counts_and_has_no_number(answers: dict[str, str]) -> None:
    """A report is of every job that a node sampled."""
    answers["squeue"] = f"{ROW}{'the site and its own words':{ADMIN_COMMENT_BYTES}}\n"
    assert collect_usage(builtin_catalogue()) == (replace(KNOWN, number="", outcome="timed_out"),)


@pytest.mark.parametrize(
    ("state", "exit_code", "expected"),
    [
        ("FAILED", "1:0", "failed"),
        ("FAILED", "0:15", "interrupted"),
        ("FAILED", "143:0", "interrupted"),
        ("FAILED", "127:0", "interrupted"),
        ("NODE_FAIL", "0:0", "interrupted"),
        ("BOOT_FAIL", "1:0", "interrupted"),
        ("OUT_OF_MEMORY", "0:125", "interrupted"),
        ("COMPLETED", "0:0", "completed"),
    ],
)
def test_who_was_ended_from_outside_is_told_from_who_failed(
    state: str, exit_code: str, expected: str, answers: dict[str, str]
) -> None:
    """A run that was interrupted with its cap filled counted as one that lacked memory: its next share was larger."""
    answers["sacct"] = f"7~7~ada~{state}~{exit_code}~train~1000~physics~gpu~{MARK}"
    assert [usage.outcome for usage in collect_usage(builtin_catalogue())] == [expected]
    answers["squeue"] = f"{row(state, exit_code)}{MARK:{ADMIN_COMMENT_BYTES}}\n"
    assert [usage.outcome for usage in collect_usage(builtin_catalogue())] == [expected]


@pytest.mark.parametrize(("comment", "expected"), [(f"x {PROGRAM_MISSING}", "interrupted"), ("x", "failed")])
def test_a_program_that_is_missing_is_no_failure_of_the_job(
    comment: str, expected: str, answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status of srun is 2 then, as of many programs that failed."""

    def squeue(*words: str) -> bytes:
        commented = f"{'7':64}{'7':16}{comment:1100}\n"
        return (
            commented if "Comment" in words[-1] else f"{row('FAILED', '2:0')}{MARK:{ADMIN_COMMENT_BYTES}}\n"
        ).encode()

    monkeypatch.setattr(scontrol, "run_bytes", squeue)
    assert [usage.outcome for usage in collect_usage(builtin_catalogue())] == [expected]


def test_a_task_that_the_second_listing_alone_has_hides_no_job(
    answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array is listed with all its tasks, of which one became a job of its own after the first listing."""

    def squeue(*words: str) -> bytes:
        both = f"{'7':64}{'7':16}{'x':1100}\n{'7_1':64}{'9':16}{'x':1100}\n"
        return (both if "Comment" in words[-1] else f"{row('FAILED', '2:0')}{MARK:{ADMIN_COMMENT_BYTES}}\n").encode()

    monkeypatch.setattr(scontrol, "run_bytes", squeue)
    assert [usage.outcome for usage in collect_usage(builtin_catalogue())] == ["failed"]


def test_a_job_whose_epilog_still_runs_is_told_of_later(answers: dict[str, str]) -> None:
    """Nothing tells yet how it ended; it was recorded as unknown, for good."""
    answers["squeue"] = f"{row('COMPLETING')}{MARK:{ADMIN_COMMENT_BYTES}}\n"
    assert collect_usage(builtin_catalogue()) == ()


FORGED = "gpusage 000000000000 REWRITE gres/gpu:1 -> gres/mps:40 | forged"


def test_a_jobs_name_passes_for_no_field_and_no_other_job_of_the_accounting(answers: dict[str, str]) -> None:
    answers["sacct"] = f"7~7~ada~COMPLETED~0:0~x|{FORGED}~1000~physics~gpu~{MARK}\n"
    assert [usage.number for usage in collect_usage(builtin_catalogue())] == ["69215f4a0c3e"]
    answers["sacct"] = f"7~7~eve~COMPLETED~0:0~x\n7|7|ada|COMPLETED|0:0|x|{FORGED}~1000~physics~gpu~{MARK}\n"
    assert collect_usage(builtin_catalogue()) == ()


def test_a_jobs_name_that_is_no_text_costs_nobody_elses_usage(answers: dict[str, str]) -> None:
    """One such job ended the collecting of every other."""
    other = row("COMPLETED", job="8", user="eve", name=f"bad{chr(0xDCFF)}") + f"{MARK:{ADMIN_COMMENT_BYTES}}"
    answers["squeue"] = f"{other}\n{ROW}{MARK:{ADMIN_COMMENT_BYTES}}\n"
    assert [usage.user for usage in collect_usage(builtin_catalogue())] == ["ada"]


def test_all_jobs_are_asked_for_at_once(answers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each for itself, the jobs of a thousand nodes took slurmctld thousands of questions a minute."""
    measured = [replace(MEASURED, job_id=str(number)) for number in range(100, 140)]
    answers["scontrol"] = f"NodeName=n1 Comment={append_usage_reports('', measured, MEASURED.ended_at_s)}"
    requests = []
    monkeypatch.setattr(scontrol, "run_bytes", lambda *words: requests.append(words) or b"")
    collect_usage(builtin_catalogue())
    assert len(requests) == 1
