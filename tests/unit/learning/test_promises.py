"""Whether promises were kept, and when a site stops to make them for a while."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.learning.promises import LEAST_MISSES, WINDOW, is_kept, is_mistrusted
from gpusage.learning.runs import Run
from runs import GIB, RUN, shared

WHOLE = [RUN, RUN, RUN]
HELD_BACK = replace(RUN, promised=1.3, promised_bytes=8 * GIB, utilization_high=0.5)


@pytest.mark.parametrize(
    ("run", "kept"),
    [
        pytest.param(RUN, None, id="nothing was promised"),
        pytest.param(shared(1.2 * 3600), True, id="as fast as promised"),
        pytest.param(shared(2.0 * 3600), False, id="slower than promised"),
        pytest.param(replace(shared(3600), lacked_memory=True), False, id="out of memory"),
        pytest.param(replace(shared(3600), promised_bytes=2 * GIB), False, id="more memory than promised"),
        pytest.param(HELD_BACK, True, id="a whole run that was as idle as the share was decided for"),
        pytest.param(replace(HELD_BACK, utilization=0.9), False, id="a whole run that was busier"),
        pytest.param(replace(HELD_BACK, utilization=None), None, id="a whole run that nobody looked at"),
    ],
)
def test_a_promise_is_kept_or_broken_where_something_tells(run: Run, kept: bool | None) -> None:  # noqa: FBT001 - a table
    assert is_kept(run, [*WHOLE, run]) is kept


def test_a_share_that_is_idle_at_times_is_not_slowed_down_whatever_durations_tell() -> None:
    run = replace(shared(3600), utilization=0.6)
    assert is_kept(run, [run]) is True
    assert is_kept(replace(run, utilization=0.97), [run]) is None


def test_trust_goes_after_five_misses_of_twelve_and_returns_after_twelve_with_one() -> None:
    assert not is_mistrusted([False] * 4)
    assert is_mistrusted([False] * 5)
    assert is_mistrusted([False] * 5 + [True] * 11)
    assert not is_mistrusted([False] * 5 + [True] * 12)
    assert not is_mistrusted([False] * 5 + [False] + [True] * 12)
    assert is_mistrusted([False] * 5 + [False, True] * 20)


@given(st.lists(st.booleans(), max_size=200))
def test_trust_never_flutters(kept: list[bool]) -> None:
    """Between one change and the next there are always many promises, whatever happens."""
    states = [is_mistrusted(kept[:count]) for count in range(len(kept) + 1)]
    changes = [index for index, (before, after) in enumerate(pairwise(states)) if before != after]
    assert all(later - earlier >= LEAST_MISSES for earlier, later in pairwise(changes))
    assert all(later - earlier >= WINDOW for earlier, later in list(pairwise(changes))[::2])
    assert len(changes) <= 2 * len(kept) / (LEAST_MISSES + WINDOW) + 2
