"""A published row beside what gpusage predicts for the same run."""

from __future__ import annotations

from dataclasses import dataclass

from gpusage_hooks.types import Interval
from gpusage_lab.published.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A published figure beside ours, in the publisher's unit.

    Attributes:
        ratio: Predicted over published time or memory.
        star: Why the prediction is not familiar; empty where it is.
    """

    run: Run
    ours: Interval
    ratio: float
    star: str

    @property
    def factor(self) -> float:
        """Return how far the prediction is off, in either direction; 1 where it is right."""
        return max(self.ratio, 1.0 / self.ratio)

    @property
    def is_inside(self) -> bool:
        """Tell whether the published figure lies in our 90 % interval."""
        return self.ours.low <= self.run.row.value <= self.ours.high
