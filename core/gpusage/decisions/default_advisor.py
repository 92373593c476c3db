"""The advisor with everything that is installed, which a process has once."""

from __future__ import annotations

from functools import cache

from gpusage.decisions.advisor import Advisor, make_advisor


@cache
def advisor() -> Advisor:
    """Return the advisor that this process shares."""
    return make_advisor()
