"""Predicted figures, each with the ends between which the truth should lie."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A predicted figure: the point, and the ends between which 90 % of the truths should lie."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInterval(Interval):
    """Bytes of device memory that a run needs, with a second upper end.

    Attributes:
        share_high: What a share must have: 1 of 1,000 jobs of unseen families needs more. At least the upper end, which
            says whether a job fits on a whole GPU.
    """

    share_high: float
