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
    """Peak bytes of device memory, with a second upper end.

    Attributes:
        share_high: What a share books, and lets the job take: 95 % of jobs stay below, and the others have what they
            would like to use, not what they need. Between the point and the upper end, which says whether a job fits.
    """

    share_high: float
