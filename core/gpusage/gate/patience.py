"""How long training may be held: bounded each time, and never more than a fixed part of all time.

Invariants:

1. One hold ends after ``longest_s``, whatever happens.
2. In any span of time training is held for at most ``1 - share`` of it, and ``longest_s`` more: it keeps ``share``.
"""

from __future__ import annotations

LONGEST_S = 0.1
"""Of one hold: longer than most requests take, shorter than a user notices."""
TRAINING_SHARE = 0.2
"""The part of the time that training has, if requests never end."""


class Patience:
    """Time that training may be held, earned while it runs and spent while it is held."""

    def __init__(self, *, longest_s: float = LONGEST_S, share: float = TRAINING_SHARE) -> None:
        self._longest_s = longest_s
        self._earned_per_s = (1 - share) / share
        self._credit_s = longest_s
        self._since_s: float | None = None

    def allowed_s(self, now_s: float) -> float:
        """Return how long training may be held from *now_s* on."""
        run_s = 0.0 if self._since_s is None else max(now_s - self._since_s, 0.0)
        self._credit_s = min(self._longest_s, self._credit_s + run_s * self._earned_per_s)
        self._since_s = now_s
        return self._credit_s

    def spend(self, held_s: float) -> None:
        """Count a hold of *held_s* that began at the last `allowed_s`."""
        self._credit_s -= held_s
        self._since_s = (self._since_s or 0.0) + held_s
