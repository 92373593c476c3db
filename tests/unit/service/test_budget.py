"""What each user may take of the judge's time."""

from __future__ import annotations

from gpusage.service.engine import FREE_S, LIMIT_S, WINDOW_S, Budget


def test_honest_questions_cost_nothing_however_many_there_are() -> None:
    budget = Budget()
    for _ in range(1000):
        budget.charge("uid 1", FREE_S, 0.0)
    assert budget.debt_s("uid 1", 0.0) < LIMIT_S


def test_slow_questions_use_up_what_a_user_has_and_nobody_elses() -> None:
    budget = Budget()
    budget.charge("uid 1", LIMIT_S, 0.0)
    assert budget.debt_s("uid 1", 0.0) >= LIMIT_S
    assert budget.debt_s("uid 2", 0.0) < LIMIT_S


def test_what_was_used_up_comes_back_evenly() -> None:
    """After half the window half of it, after the window all; a larger debt takes longer."""
    budget = Budget()
    budget.charge("uid 1", 1.5 * LIMIT_S, 100.0)
    assert budget.debt_s("uid 1", 100.0 + 0.49 * WINDOW_S) >= LIMIT_S
    assert budget.debt_s("uid 1", 100.0 + 0.51 * WINDOW_S) < LIMIT_S
    budget.charge("uid 1", LIMIT_S, 100.0 + 0.51 * WINDOW_S)
    assert budget.debt_s("uid 1", 100.0 + 0.51 * WINDOW_S) >= LIMIT_S
    assert budget.debt_s("uid 1", 100.0 + 10 * WINDOW_S) < LIMIT_S


def test_whoever_is_not_named_has_no_account() -> None:
    """A manager that names no users would otherwise have one account for all."""
    budget = Budget()
    budget.charge("", 100.0, 0.0)
    assert budget.debt_s("", 0.0) < LIMIT_S
