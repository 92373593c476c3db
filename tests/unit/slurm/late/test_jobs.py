"""Which jobs are looked at a second time, by what their marks say."""

from __future__ import annotations

import pytest

from gpusage.decisions.advisor import NO_CARD
from gpusage.graphs.card.error import encode_error
from gpusage_hooks.types import DecisionRequest, Job
from gpusage_slurm.late import jobs
from gpusage_slurm.submission.missing_card import may_be_read_later, missing_card_reason
from gpusage_slurm.submission.request import parse_submission

ROW = {
    "StateCompact": "PD",
    "BatchFlag": "1",
    "tres-per-node": "gres/gpu:1",
    "tres-per-job": "",
    "tres-per-socket": "",
    "tres-per-task": "",
    "admin_comment": "",
}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"export": "NONE"},
        {"card": "!127"},
        {"card": "!137"},
        {"card": encode_error("describing the model takes longer than 2 s, this site's limit")},
    ],
)
def test_a_missing_description_is_a_reason_to_read_later(fields: dict[str, str]) -> None:
    assert may_be_read_later(missing_card_reason(fields) or "")


@pytest.mark.parametrize(
    "reason", ["half a v100 costs 1.4 x", "--exclusive takes the whole node", "Model 'a.onnx' must be a file", ""]
)
def test_any_other_reason_is_not(reason: str) -> None:
    assert not may_be_read_later(reason)
    assert may_be_read_later(NO_CARD)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"tres-per-node": "gres/mps:40"}, False),
        ({"tres-per-node": "", "tres-per-task": "gres/gpu=1"}, True),
        ({"StateCompact": "R"}, False),
        ({"StateCompact": "R", "BatchFlag": "0"}, True),
        ({"admin_comment": "the site's own"}, True),
        ({"admin_comment": "gpusage KEEP | gpusaged at /run: no answer within 40 ms"}, True),
        ({"admin_comment": f"gpusage 69215f4a0c3e KEEP gres/gpu:1 | {NO_CARD}"}, True),
        ({"admin_comment": "gpusage 69215f4a0c3e KEEP gres/gpu:1 | no share is cheap enough"}, False),
        ({"admin_comment": "gpusage 69215f4a0c3e BACK gres/mps:40 -> gres/gpu:1 | it was stuck"}, False),
        ({"admin_comment": "gpusage 69215f4a0c3e REWRITE gres/gpu:1 -> gres/mps:40 | cheap"}, False),
    ],
)
def test_a_job_is_late_where_nothing_was_decided_about_its_model(change: dict[str, str], expected: bool) -> None:
    assert jobs._is_late({**ROW, **change}) == expected


def test_srun_with_a_card_and_an_old_slurm_are_advised() -> None:
    by_srun = understood(script="0", card="AAAA")
    assert by_srun.advice_only == "only batch jobs are changed, not srun or salloc"
    assert by_srun.request.obstacles == ()
    assert understood(card="AAAA", advice_only="too old").advice_only == "too old"
    assert understood(card="AAAA").advice_only == ""


def understood(**fields: str) -> Job:
    """Return what is understood of a job for one GPU with these *fields*."""
    job = parse_submission(DecisionRequest(manager="slurm", fields={"tres_per_node": "gres/gpu:1", **fields}))
    assert job is not None
    return job


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("#!/bin/sh\nsrun train", ""),
        ("srun --cpus-per-gpu=4 train", "cpus-per-gpu"),
        ("export SLURM_CPUS_PER_GPU=4", "cpus-per-gpu"),
        ("x" * (256 * 1024 + 1), "unread"),
    ],
)
def test_a_script_is_looked_at_as_job_submit_does(script: str, options: str) -> None:
    assert jobs.incompatible_srun_option(script) == options
