"""Where the metrics are told."""

from __future__ import annotations

import pytest

from gpusage.service.counters import BOUNDS_S, AnswerCounters
from gpusage.service.metrics.opening import parse_address
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


def test_an_answer_falls_into_the_bucket_whose_upper_end_it_does_not_pass() -> None:
    durations = AnswerCounters().durations
    for duration_s in (0.0, BOUNDS_S[0], 0.0006, 5.0):
        durations.add(duration_s)
    assert (durations.counts[0], durations.counts[1], durations.counts[-1], sum(durations.counts)) == (2, 1, 1, 4)


def test_an_answer_is_counted_when_it_has_left() -> None:
    tally, sent = AnswerCounters(), []
    answer = tally.timed(sent.append)
    assert sum(tally.durations.counts) == 0
    answer(b"x")
    assert (sent, sum(tally.durations.counts)) == ([b"x"], 1)
