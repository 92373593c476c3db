from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.gate.training import Patience

RUNS = st.lists(st.floats(0.0, 0.05), min_size=1, max_size=60)


@given(RUNS, st.floats(0.01, 0.5), st.floats(0.05, 0.95))
def test_training_keeps_its_share_of_any_time_however_long_requests_last(
    runs: list[float], longest_s: float, share: float
) -> None:
    """Each part runs, and is then held for as long as it may be: the worst that can happen."""
    patience, now_s, held_s = Patience(longest_s=longest_s, share=share), 0.0, 0.0
    for run_s in runs:
        now_s += run_s
        allowed_s = patience.allowed_s(now_s)
        assert 0 <= allowed_s <= longest_s
        patience.spend(allowed_s)
        now_s, held_s = now_s + allowed_s, held_s + allowed_s
        assert held_s <= (1 - share) * now_s + longest_s


def test_a_hold_that_ends_early_leaves_the_rest_for_the_next() -> None:
    patience = Patience(longest_s=0.1, share=0.5)
    patience.allowed_s(10.0)
    patience.spend(0.04)
    assert patience.allowed_s(10.04) == pytest.approx(0.06)
