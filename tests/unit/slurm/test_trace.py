"""Past jobs from sacct for the simulator."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import PastJob
from gpusage_slurm.trace import past_jobs, read_past_jobs

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


def test_a_job_that_had_a_share_asked_for_one_gpu() -> None:
    text = HEAD + "7|ann|2026-10-01T10:00:00|3600|120|billing=25,cpu=4,gres/mps=25,node=1|\n"
    assert [*past_jobs(text, "f")] == [replace(ANNS_JOB, gpu_count=1, gpu_type=None, model=None)]


def test_jobs_without_gpus_that_never_ran_and_steps_are_left_out() -> None:
    text = (
        HEAD
        + "1|a|2026-10-01T10:00:00|60|1|cpu=4|\n"
        + f"2|a|2026-10-01T10:00:00|0|1|{GPU}|\n"
        + f"3.batch|a|2026-10-01T10:00:00|60|1|{GPU}|\n"
    )
    assert not [*past_jobs(text, "f")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "'JobID'", id="empty"),
        pytest.param("JobID|User\n", "'Submit'", id="no column"),
        pytest.param(HEAD + "1|a\n", "Line 2.*7 cells; got 2", id="too few cells"),
        pytest.param(HEAD + f"1|a|t|-5|1|{GPU}|\n", "'ElapsedRaw' of f, line 2", id="negative time"),
        pytest.param(HEAD + f"1|a|t|{'9' * 5000}|1|{GPU}|\n", "'ElapsedRaw' of f, line 2", id="time without end"),
        pytest.param(HEAD + f"1|a|Unknown|5|1|{GPU}|\n", "'Submit' of f, line 2", id="no time"),
    ],
)
def test_what_sacct_does_not_write_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        list(past_jobs(text, "f"))


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert all(job.gpu_count > 0 for job in past_jobs(HEAD + text, "f"))
    except RequestError:
        return


def test_only_what_sacct_wrote_is_read_as_its_jobs(tmp_path: Path) -> None:
    sacct, other = tmp_path / "month.txt", tmp_path / "jobs.csv"
    sacct.write_text(HEAD + f"7|ann|2026-10-01T10:00:00|3600|120|{GPU}|\n")
    other.write_text("job_id,submit_time\n")
    (job,) = read_past_jobs(str(sacct)) or ()
    assert (job.gpu_count, job.gpu_type, job.model) == (2, "v100", None)
    assert read_past_jobs(str(other)) is None
    assert read_past_jobs(str(tmp_path / "none")) is None
