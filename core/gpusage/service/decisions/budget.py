"""How much of the engine's time each user may take, so that no user's cards keep the others waiting.

An honest card takes a few milliseconds, which are free. A card that was forged to be slow uses up its user's budget.
Until the budget has come back, that user's new questions get the answer that changes nothing, at once.
"""

from __future__ import annotations

from gpusage.service.lru_cache import WeightedLruCache

FREE_S = 0.02
LIMIT_S, WINDOW_S = 0.2, 10.0
_USERS = 10_000
"""The debts that are kept: of more users than submit within a window."""

SPENT = (
    f"models of this user took more than {LIMIT_S:g} s of gpusaged's time, which comes back within {WINDOW_S:g} s; "
    "it considers jobs submitted after that"
)


class Budget:
    """Counts processor seconds by user, for one thread; a user without an entry has spent none."""

    def __init__(self) -> None:
        self._debts: WeightedLruCache[str, tuple[float, float]] = WeightedLruCache(_USERS)

    def is_spent(self, user: str, now_s: float) -> bool:
        """Return whether *user* has to wait."""
        return bool(user) and self._debt_s(user, now_s) >= LIMIT_S

    def charge(self, user: str, taken_s: float, now_s: float) -> None:
        """Put down that a question of *user* took *taken_s* seconds of the processor."""
        if user and taken_s > FREE_S:
            self._debts.put(user, (self._debt_s(user, now_s) + taken_s, now_s))

    def _debt_s(self, user: str, now_s: float) -> float:
        debt_s, then_s = self._debts.get(user) or (0.0, now_s)
        return max(0.0, debt_s - (now_s - then_s) * LIMIT_S / WINDOW_S)
