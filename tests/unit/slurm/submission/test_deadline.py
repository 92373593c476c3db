"""The time that `--deadline` names, as sbatch reads it."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import DecisionRequest
from gpusage_slurm.submission.deadline import seconds_left, time_of
from gpusage_slurm.submission.request import parse_submission

NOW = datetime(2026, 11, 22, 20, 0, 30)  # noqa: DTZ001 - Slurm's times are of the host's own clock


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now+8hours", "2026-11-23T04:00:30"),
        ("now+1week", "2026-11-29T20:00:30"),
        ("now+90", "2026-11-22T20:02:00"),
        ("20:30", "2026-11-22T20:30:00"),
        ("8:00 PM", "2026-11-23T20:00:00"),  # half a minute ago today
        ("noon", "2026-11-23T12:00:00"),
        ("tomorrow", "2026-11-23T00:00:00"),
        ("1224", "2026-12-24T00:00:00"),
        ("11/21", "2027-11-21T00:00:00"),
        ("12.24.27", "2027-12-24T00:00:00"),
        ("12/24-18:00", "2026-12-24T18:00:00"),
        ("2026-12-24", "2026-12-24T00:00:00"),
        ("2026-12-24T18:00", "2026-12-24T18:00:00"),
        ("2026-12-24T18:00:05", "2026-12-24T18:00:05"),
        ("now+2h", None),  # sbatch wants the word in full
        ("02/29", None),
        ("now+999999999weeks", None),
        ("uts=999999999999", None),
        ("N/A", None),
        ("", None),
    ],
)
def test_a_time_is_read_as_sbatch_reads_it(text: str, expected: str | None) -> None:
    time = time_of(text, NOW)
    assert (time.isoformat() if time else None) == expected


def test_seconds_since_1970_are_what_the_lua_module_sends() -> None:
    assert seconds_left(f"uts={NOW.timestamp() + 90:.0f}", NOW) == 90


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("soon", "must be a time as sbatch reads it; got 'soon'"),
        ("2026-11-22T20:00:00", "must be a time to come; got '2026-11-22T20:00:00', which is over"),
    ],
)
def test_what_is_no_time_to_come_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        seconds_left(text, NOW)


@given(st.one_of(st.text(max_size=30), st.from_regex(r"[0-9/.:T+ -]{1,20}", fullmatch=True)))
def test_any_text_is_a_time_or_none(text: str) -> None:
    time_of(text, NOW)


@given(st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)))  # noqa: DTZ001 - as above
def test_what_slurm_prints_is_read_back(time: datetime) -> None:
    assert time_of(time.strftime("%Y-%m-%dT%H:%M:%S"), NOW) == time.replace(microsecond=0)


def test_a_script_s_deadline_reaches_the_request() -> None:
    script = "#!/bin/sh\n#SBATCH --gres=gpu:1 --deadline=now+2hours\n#SBATCH --comment=model=r.onnx\ntrue\n"
    job = parse_submission(DecisionRequest(manager="slurm", script=script))
    assert job is not None
    assert job.request.deadline_s == pytest.approx(7200, abs=1)


def test_a_job_without_a_deadline_has_none() -> None:
    job = parse_submission(DecisionRequest(manager="slurm", fields={"tres_per_node": "gres:gpu:1", "deadline": ""}))
    assert job is not None
    assert job.request.deadline_s is None
