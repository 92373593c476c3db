"""What became of the runs of a simulated site, counted the same way wherever a bench learns."""

from __future__ import annotations

from dataclasses import dataclass

WHOLE = 100
EXPECTED, WORST = 1.25, 1.5
"""The site's limits of a slowdown."""


@dataclass(slots=True)
class Tally:
    """Counts of runs; GPU time in seconds of a whole GPU.

    Attributes:
        within_limit: Of the shared runs, those that were at most as slow as the site expects.
        broken: Of the shared runs, those that were slower than it allows.
        starved: Shared runs that ran out of memory, and ran once more on a whole GPU.
    """

    runs: int = 0
    shared: int = 0
    within_limit: int = 0
    broken: int = 0
    starved: int = 0
    whole_s: float = 0.0
    used_s: float = 0.0

    def add(self, percent: int, slowdown: float, whole_s: float, *, starved: bool = False) -> None:
        """Count one run on *percent* of a GPU, which takes *whole_s* on a whole one."""
        shared = percent < WHOLE
        self.runs += 1
        self.shared += shared
        self.within_limit += shared and slowdown <= EXPECTED and not starved
        self.broken += shared and slowdown > WORST
        self.starved += starved
        self.whole_s += whole_s
        self.used_s += whole_s * (slowdown * percent / WHOLE + starved)
