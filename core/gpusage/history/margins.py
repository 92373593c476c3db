"""How far the next run may go beyond the runs that tell of it: conformal quantiles of one user's own misses.

Invariants:

1. A user's margins come from that user's runs and from constants: nobody makes them smaller for somebody else.
2. No margin is below 1 or above `LARGEST`.

Source:
    Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005, chapter 2: with n exchangeable scores
    the next one is at most the ceil((n + 1) (1 - alpha))-th smallest with a probability of at least 1 - alpha.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, exp, log

from gpusage.history.windows import Window

MISSED = 0.05
"""Of each end of each quantity, so that both quantities together stay below their upper ends in 90 % of cases."""
LEAST_SCORES = 19
"""With fewer the quantile is above all of them."""
KEPT_SCORES = 200
LARGEST = 4.0
UNKNOWN = ((8, 1.1), (4, 1.15), (2, 1.3), (1, 1.5))
"""The margin of a user of whom too little is known: from so many runs on."""
WELL_KNOWN = 4
"""Runs, from which on a user's own margin counts alone: it is of windows of every length."""
FAR_TIMES = 1.3
"""How much wider where the runs have little in common with the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How one run lay to the runs before it: logarithms of it over their highest, and of their lowest over it."""

    over: float
    under: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """The factors of a user: up from the highest run, and down from the lowest."""

    up: float
    down: float


STRANGE = Margin(up=2.0, down=2.0)
"""Of runs of others, however many there are: else somebody could make it smaller by having the same script."""


def score(window: Window, value: float) -> Score:
    """Return how *value* of the next run lies to *window*."""
    return Score(over=log(value / window.high), under=log(window.low / value))


def margin_of(scores: Sequence[Score]) -> Margin | None:
    """Return the margin that *scores* of one user, oldest first, call for; ``None`` where they are too few."""
    newest = scores[-KEPT_SCORES:]
    if len(newest) < LEAST_SCORES:
        return None
    return Margin(up=_factor(each.over for each in newest), down=_factor(each.under for each in newest))


def applied(window: Window, own: Margin | None, *, near: bool) -> tuple[float, float]:
    """Return the ends between which the next run should lie.

    Args:
        window: The runs that tell of it.
        own: The margin of its user at such keys.
        near: Whether the runs have much in common with it.
    """
    unknown = next(factor for count, factor in UNKNOWN if window.count >= count) * (1.0 if near else FAR_TIMES)
    if own is None:
        own = Margin(up=unknown, down=unknown)
    elif window.count < WELL_KNOWN:
        own = Margin(up=max(own.up, unknown), down=max(own.down, unknown))
    return window.low / own.down, window.high * own.up


def _factor(logarithms: Iterable[float]) -> float:
    ordered = sorted(logarithms)
    rank = min(ceil((len(ordered) + 1) * (1 - MISSED)), len(ordered))
    return min(max(exp(ordered[rank - 1]), 1.0), LARGEST)
