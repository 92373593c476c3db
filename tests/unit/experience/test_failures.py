"""Which jobs failed in their shares, so that the next like them get a whole GPU, and what lifts that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.experience.learned import NO_FAILURES, REASON, failures_of, why_whole, with_failures
from gpusage.store.rows import Observation
from gpusage_hooks.types import Allocation, Code, DecisionRecord, JobIdentity, Outcome, Submitter, Usage
from records import RECORD, USAGE

IDENTITY = JobIdentity(user="1000", job_name="train", fingerprint="f" * 16, script_digest="d" * 16)
SHARE = Allocation(division="percentage", share_percent=25)
WHOLE = Allocation()
SLICE = Allocation(division="slice", memory_limit_bytes=2**30)
FIELDS = {"user": "1000", "job_name": "train", "script_digest": "d" * 16}


def record(identity: JobIdentity) -> DecisionRecord:
    """Return the record of a job that was given a share."""
    return replace(RECORD, mode="enforce", identity=identity, decision=replace(RECORD.decision, code=Code.REWRITE))


def run(outcome: Outcome, ended_at_s: float, granted: Allocation = SHARE, **figures: object) -> Observation:
    """Return what a run of the job showed."""
    usage: Usage = replace(USAGE, outcome=outcome, ended_at_s=ended_at_s, granted=granted, **figures)  # type: ignore[arg-type]
    return Observation(usage=usage, decision=record(IDENTITY))


FAILED = run("failed", 100)


@pytest.mark.parametrize(
    ("runs", "is_whole"),
    [
        ((), False),
        ((FAILED,), True),
        ((run("out_of_memory", 100),), True),
        ((run("cancelled", 100), run("interrupted", 100), run("timed_out", 100), run("unknown", 100)), False),
        ((run("failed", 100, WHOLE),), False),
        ((FAILED, run("completed", 200)), False),  # a share was enough
        ((FAILED, run("completed", 200, WHOLE, memory_bytes=2**30, sampled_s=600.0)), False),  # its memory is known now
        ((FAILED, run("completed", 200, WHOLE, memory_bytes=None)), True),
        ((FAILED, run("completed", 200, WHOLE, memory_bytes=2**30, sampled_s=5.0)), True),
        ((run("completed", 50), FAILED), True),
        ((run("failed", 100, SLICE),), True),
        ((run("out_of_memory", 100, SLICE), run("completed", 200, SLICE)), False),  # a larger one was enough
        ((run("out_of_memory", 100, SLICE), run("completed", 200, WHOLE, memory_bytes=None)), True),
        # Another container of the same job: its end, and its memory, tell nothing.
        ((run("out_of_memory", 100), run("completed", 101)), True),
        ((run("out_of_memory", 100), run("completed", 101, memory_bytes=2**30, sampled_s=600.0)), True),
        ((run("completed", 99, memory_bytes=2**30, sampled_s=600.0), run("out_of_memory", 100)), True),
        ((run("out_of_memory", 100), run("completed", 101), run("completed", 200, job_id="next")), False),
        ((run("out_of_memory", 100), run("completed", 200, WHOLE, memory_bytes=2**30, sampled_s=600.0)), False),
    ],
)
def test_a_failure_in_a_share_holds_until_a_share_was_enough_or_the_memory_is_told(
    runs: tuple[Observation, ...], is_whole: object
) -> None:
    for order in (runs, runs[::-1]):
        why = why_whole(failures_of(order, 60), IDENTITY.fingerprint, Submitter(fields=FIELDS))
        assert (why == REASON) is is_whole


@pytest.mark.parametrize(
    ("fields", "is_like"),
    [
        ({}, True),
        ({"job_name": "other"}, True),  # the same script
        ({"script_digest": "e" * 16}, True),  # the same name
        ({"job_name": "other", "script_digest": "e" * 16}, False),
        ({"user": "1001"}, False),
    ],
)
def test_jobs_of_one_user_and_model_are_alike_by_their_name_or_script(fields: dict[str, str], is_like: object) -> None:
    failures = with_failures(NO_FAILURES, [IDENTITY])
    assert bool(why_whole(failures, IDENTITY.fingerprint, Submitter(fields=FIELDS | fields))) is is_like
    assert why_whole(failures, "a" * 16, Submitter(fields=FIELDS | fields)) == ""


def test_without_a_model_name_and_script_must_agree() -> None:
    failures = with_failures(NO_FAILURES, [replace(IDENTITY, fingerprint="")])
    assert why_whole(failures, "", Submitter(fields=FIELDS)) == REASON
    assert why_whole(failures, "", Submitter(fields=FIELDS | {"job_name": "other"})) == ""
    assert why_whole(failures, "", Submitter(fields=FIELDS | {"script_digest": "e" * 16})) == ""
