"""Past jobs from sacct for the simulator."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import PastJob
from gpusage_slurm.trace import COMMAND, past_jobs, read_past_jobs

HEAD = "JobID|User|Submit|ElapsedRaw|TimelimitRaw|AllocTRES|Comment\n"
TEN = int(datetime.fromisoformat("2026-10-01T10:00:00").timestamp())
GPU = "billing=4,cpu=4,gres/gpu:v100=2,gres/gpu=2,mem=16G,node=1"


ANNS_JOB = PastJob(
    job_id="7",
    user="ann",
    submitted_at_s=TEN,
    duration_s=3600,
    gpu_count=2,
    gpu_type="v100",
    model="/d/net.onnx,batch=8",
    time_limit_s=7200,
)


def test_jobs_with_gpus_are_past_jobs() -> None:
    text = (
        HEAD
        + f"7|ann|2026-10-01T10:00:00|3600|120|{GPU}|model=/d/net.onnx,batch=8\n"
        + "8_1|bob|2026-10-01T10:01:00|60|UNLIMITED|cpu=4,gres/gpu=1|a|b\n"
    )
    assert [*past_jobs(text, "f")] == [
        ANNS_JOB,
        PastJob(job_id="8_1", user="bob", submitted_at_s=TEN + 60, duration_s=60, gpu_count=1),
    ]


WORD = "5f0c-user"
SAFE = HEAD.replace("Comment", "WorkDir|Comment")


def test_no_comment_passes_for_a_job_where_nobody_knew_what_stands_between_cells() -> None:
    forged = f"8|root|2026-10-01T10:00:00|3600|120|{GPU}|/|model=/etc/passwd"
    row = f"7|ann|2026-10-01T10:00:00|3600|120|{GPU}|/home/ann|".replace("|", WORD)
    text = SAFE.replace("|", WORD) + f"{row}model=net.onnx\n{forged}\n{row}model=timm:resnet50\u2028x\n"
    assert [job.model for job in past_jobs(text, "f")] == ["/home/ann/net.onnx", "timm:resnet50\u2028x"]


def test_a_comma_stands_in_a_cell_already() -> None:
    with pytest.raises(RequestError, match="must have the column 'JobID'; got 'JobID,User,Submit"):
        [*past_jobs(HEAD.replace("|", ","), "f")]


def test_a_job_that_had_a_share_asked_for_one_gpu() -> None:
    text = HEAD + "7|ann|2026-10-01T10:00:00|3600|120|billing=25,cpu=4,gres/mps=25,node=1|\n"
    assert [*past_jobs(text, "f")] == [replace(ANNS_JOB, gpu_count=1, gpu_type=None, model=None)]


WHOLE = (
    "JobID|User|Submit|Start|ElapsedRaw|TimelimitRaw|State|ExitCode|Partition|NodeList|NTasks|AllocTRES|TRESUsageInMax"
)
ONE = "cpu=4,gres/gpu=1"


def row(**changes: str) -> str:
    """Return a row of the documented command: a job of 100 s on one GPU, but for *changes*."""
    cells = {
        "JobID": "7",
        "User": "ann",
        "Submit": "1000",
        "Start": "1060",
        "ElapsedRaw": "100",
        "TimelimitRaw": "10",
        "State": "COMPLETED",
        "ExitCode": "0:0",
        "Partition": "gpu",
        "NodeList": "n[07-09,12]",
        "NTasks": "",
        "AllocTRES": ONE,
        "TRESUsageInMax": "",
    }
    return "|".join((cells | changes).values())


def jobs_of(*rows: str) -> list[PastJob]:
    return [*past_jobs("\n".join((WHOLE, *rows)) + "\n", "f")]


def step(name: str, memory: str, busy: int, **changes: str) -> str:
    """Return a step of job 7."""
    used = f"cpu=00:00:09,fs/disk=5,gres/gpumem={memory},gres/gpuutil={busy},mem=9M"
    return row(**{"JobID": f"7.{name}", "User": "", "NTasks": "1", "TRESUsageInMax": used} | changes)


def test_a_job_has_the_most_that_its_steps_took_at_a_time() -> None:
    # Two tasks of 1 GiB beside the batch step, and then one of 4 GiB.
    steps = [
        step("batch", "1024M", 10),
        step("extern", "0", 0),
        step("0", str(2**30), 30, NTasks="2", ElapsedRaw="40"),
        step("1", "4G", 20, Start="1100", ElapsedRaw="60"),
    ]
    (job,) = jobs_of(row(), *steps)
    assert (job.memory_bytes, job.peak_utilization) == (5 * 2**30, 0.7)
    assert (job.submitted_at_s, job.started_at_s, job.outcome) == (1000.0, 1060.0, "completed")
    assert (job.partition, job.node) == ("gpu", "n07")


@pytest.mark.parametrize(
    "used", ["", "cpu=1,mem=9M", "gres/gpumem=18446744073709551614,gres/gpuutil=18446744073709551614"]
)
def test_what_slurm_did_not_sample_is_not_known(used: str) -> None:
    (job,) = jobs_of(row(), row(JobID="7.batch", TRESUsageInMax=used))
    assert (job.memory_bytes, job.peak_utilization) == (None, None)


def test_parts_of_a_heterogeneous_job_and_tasks_of_an_array_are_jobs_of_their_own() -> None:
    rows = [
        row(JobID="8+0"),
        row(JobID="8+0.batch"),
        row(JobID="8+1"),
        row(JobID="9_1"),
        row(JobID="9_[2-4]", ElapsedRaw="0"),
    ]
    assert [(job.job_id, job.left_out) for job in jobs_of(*rows)][:3] == [("8+0", ""), ("8+1", ""), ("9_1", "")]


def test_of_gpus_of_two_types_nobody_knows_which_they_were() -> None:
    two = "gres/gpu:a100=1,gres/gpu:v100=1,gres/gpu=2"
    some = "gres/gpu:a100=1,gres/gpu=2"  # AccountingStorageTRES names one of the types
    assert [
        (job.gpu_count, job.gpu_type, job.node) for job in jobs_of(row(AllocTRES=two), row(JobID="8", AllocTRES=some))
    ] == [
        (2, None, ""),
        (2, None, ""),
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"AllocTRES": "cpu=4"}, "had no GPU"),
        ({"ElapsedRaw": "0", "Start": "Unknown", "State": "PENDING"}, "has not started"),
        ({"ElapsedRaw": "0", "Start": "None", "State": "CANCELLED by 7"}, "ran for less than a second, or never"),
        ({"State": "RUNNING"}, "has not ended"),
        ({"Submit": "Unknown", "Start": "Unknown"}, "Submit and Start are no times"),
        ({"ElapsedRaw": "-5"}, "ElapsedRaw is not whole seconds"),
        ({"ElapsedRaw": "9" * 5000}, "ElapsedRaw is not whole seconds"),
        ({"JobID": "6.batch"}, "a step without its job"),
    ],
)
def test_each_row_that_is_no_job_on_gpus_says_why(changes: dict[str, str], why: str) -> None:
    assert [job.left_out for job in jobs_of(row(JobID="5"), row(**changes))] == ["", why] or why.startswith("a step")
    assert {job.left_out for job in jobs_of(row(**changes), row(JobID="5"))} == {"", why}


def test_the_guide_has_the_command() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "admin.md").read_text(encoding="utf-8").replace("\\\n  ", "")
    (command,) = (line for line in guide.splitlines() if " sacct " in line)
    assert {*COMMAND.split()} <= {*command.split()}


def test_a_row_that_was_cut_is_counted() -> None:
    assert [job.left_out for job in jobs_of("5|ann", row())] == ["the row has too few cells", ""]


def test_a_job_whose_submission_nobody_knows_came_when_it_started() -> None:
    assert [job.submitted_at_s for job in jobs_of(row(Submit="Unknown"))] == [1060.0]


def test_the_hour_that_comes_twice_is_told_apart_by_seconds_since_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    first, second = (jobs_of(row(Start=str(start)))[0].started_at_s for start in (1_792_888_200, 1_792_891_800))
    assert (first, second) == (1_792_888_200.0, 1_792_891_800.0)
    assert "SLURM_TIME_FORMAT=%s" in COMMAND
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "'JobID'", id="empty"),
        pytest.param("JobID|User\n", "'Submit'", id="no column"),
    ],
)
def test_what_sacct_does_not_write_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        list(past_jobs(text, "f"))


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert all((job.gpu_count > 0) != bool(job.left_out) for job in past_jobs(HEAD + text, "f"))


def test_only_what_sacct_wrote_is_read_as_its_jobs(tmp_path: Path) -> None:
    sacct, other = tmp_path / "month.txt", tmp_path / "jobs.csv"
    sacct.write_text(HEAD + f"7|ann|2026-10-01T10:00:00|3600|120|{GPU}|\n")
    other.write_text("job_id,submit_time\n")
    (job,) = read_past_jobs(str(sacct)) or ()
    assert (job.gpu_count, job.gpu_type, job.model) == (2, "v100", None)
    assert read_past_jobs(str(other)) is None
    assert read_past_jobs(str(tmp_path / "none")) is None
