"""Shares and what they cost, as people read them."""

from __future__ import annotations

import pytest

from gpusage.policies.wording import cost, part_of
from gpusage_hooks.types import Interval


@pytest.mark.parametrize(
    ("percent", "gpu", "words"),
    [
        (50, "v100", "half a v100"),
        (33, "h100", "a third of an h100"),
        (25, "rtx-3090", "a quarter of an rtx-3090"),
        (75, "t4", "three quarters of a t4"),
        (40, "A30", "40 % of an A30"),
        (50, "new-type", "half a new-type"),
    ],
)
def test_a_share_reads_as_people_say_it(percent: int, gpu: str, words: str) -> None:
    assert part_of(percent, gpu) == words


def test_a_cost_has_its_interval() -> None:
    assert cost(Interval(value=1.09, low=1.031, high=1.184)) == "9 % (3-18)"
    assert cost(Interval(value=float("inf"), low=1.0, high=float("inf"))) == "unknown % (0-unknown)"
