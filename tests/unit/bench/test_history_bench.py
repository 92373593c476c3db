"""The bench of history: what becomes of steady users, and of those beside whom others change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpusage.decisions.advisor import make_advisor

BENCH = Path(__file__).parents[3] / "bench"


def test_no_run_of_steady_users_starves_and_a_change_takes_shares_from_those_alone_who_change_after_the_first_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twelve users with one script each, memory +-2 %, 60 days; then every second one needs four times the memory."""
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "history", raising=False)
    import history  # a script of bench/

    would_change, steady, changed, others = (row[3:] for row in history.steady(make_advisor()).rows)
    for before, after, starved, _ in (would_change, steady):
        assert after > before > 0
        assert starved == 0
    assert others == steady  # whoever changes nothing keeps every share
    assert changed[0] == would_change[0]
    assert changed[1] < would_change[1]
    assert changed[2] > 0
    assert changed[3] == 0  # after a user's first run that starved had ended, no other did
