"""What the dispatcher makes of a line that tells of a failure."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gpusage.service.dispatcher import Dispatcher
from gpusage_hooks.types import JobIdentity

IDENTITY = JobIdentity(user="1000", job_name="train", fingerprint="f" * 16)


@pytest.mark.parametrize(
    ("expected", "is_taken"),
    [
        ('"number":"0123456789ab","user":"1000"', True),
        ('"number":"0123456789ab","user":"1001"', False),
        ('"number":"0123456789ab"', False),
        ('"number":"0123456789ac","user":"1000"', False),
        ('"number":["0123456789ab"],"user":{"1000":1000}', False),
    ],
)
def test_a_failure_counts_only_under_the_number_of_a_job_of_the_same_user(expected: str, is_taken: object) -> None:
    """Who could copy another user's mark into a job of his own would else decide that user's jobs."""
    taken: list[JobIdentity] = []
    parts: Any = SimpleNamespace(
        shares={"0123456789ab": IDENTITY}, add_failure=taken.append, due=threading.Event(), counts=None
    )
    replies: list[bytes] = []
    dispatcher = Dispatcher(parts, parts, parts, parts, parts)
    dispatcher.respond(f'{{"v":1,"op":"failure",{expected}}}'.encode(), 0, replies.append, replies.append)
    assert (taken == [IDENTITY]) is is_taken
    assert len(replies) == 1
    assert parts.due.is_set()
