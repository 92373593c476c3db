"""Where the metrics are told."""

from __future__ import annotations

import time
from itertools import chain

import pytest

from gpusage.service.metrics.opening import parse_address
from gpusage.service.request_handler import BOUNDS_S, AnswerCounters
from gpusage_hooks.errors import RequestError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ("127.0.0.1:9723", ("127.0.0.1", 9723)),
        ("[::1]:9723", ("::1", 9723)),
        ("localhost:1", ("localhost", 1)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["9723", "127.0.0.1", ":9723", "127.0.0.1:x", "h:99999", "http://h:1", "h:1/metrics", "[::1"]
)
def test_anything_else_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(RequestError, match=r"'daemon\.metrics' must be HOST:PORT"):
        parse_address(text)


def test_an_answer_falls_into_the_bucket_whose_upper_end_it_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    durations_s = (0.0, BOUNDS_S[0], 0.0006, 5.0)
    clock = chain.from_iterable((0.0, duration_s) for duration_s in durations_s)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    tally = AnswerCounters()
    for _ in durations_s:
        tally.timed(lambda _: None)(b"x")
    monkeypatch.undo()
    assert tally.duration_sum_s == sum(durations_s)
    counts = tally.duration_counts
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 1, 1, 4)


def test_an_answer_is_counted_when_it_has_left() -> None:
    tally, sent = AnswerCounters(), []
    answer = tally.timed(sent.append)
    assert sum(tally.duration_counts) == 0
    answer(b"x")
    assert (sent, sum(tally.duration_counts)) == ([b"x"], 1)
