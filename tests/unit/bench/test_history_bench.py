"""The bench of history: what becomes of steady users, and of those beside whom others change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpusage.decisions.advisor import make_advisor

BENCH = Path(__file__).parents[3] / "bench"


def test_no_run_of_steady_users_starves_and_a_change_takes_shares_from_those_alone_who_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twelve users with one script each, memory +-2 %, 60 days; then every second one needs four times the memory."""
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "history", raising=False)
    import history  # a script of bench/

    rows = history.steady(make_advisor()).rows
    steady, changed, unchanged = (row[3:] for row in rows)
    before, after, starved = steady
    assert after > before > 0
    assert starved == 0
    assert unchanged[2] == 0
    assert unchanged[1] > unchanged[0] > 0  # shares after the others' change, and before
    assert changed[2] < 36  # so many starved while a tenth of the newest fifty had to miss
