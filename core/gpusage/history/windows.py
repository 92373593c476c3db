"""The newest runs of one key on one GPU, as a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Quantity = Literal["utilization", "memory"]
QUANTITIES: tuple[Quantity, ...] = ("utilization", "memory")
KEPT_RUNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a few runs showed of one quantity, each value above 0.

    Attributes:
        count: How many there were.
    """

    count: int
    low: float
    middle: float
    high: float


Windows = Mapping[Quantity, Mapping[str, Window]]
"""By quantity and GPU."""


def window_of(values: Sequence[float]) -> Window:
    """Return the newest `KEPT_RUNS` of *values*, of which there is one at least."""
    newest = values[-KEPT_RUNS:]
    return Window(count=len(newest), low=min(newest), middle=median(newest), high=max(newest))


def of_several(windows: Sequence[Window]) -> Window:
    """Return what several users' *windows* say together: each counts once, and the highest end is theirs all."""
    return Window(
        count=len(windows),
        low=min(window.low for window in windows),
        middle=median(window.middle for window in windows),
        high=max(window.high for window in windows),
    )
