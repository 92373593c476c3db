"""What became of jobs that name no model: how many were told by their history, and how true that was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusage.history.reading import checked_runs
from gpusage.history.trust import trust_of
from gpusage.mark import UNNAMED
from gpusage.store.usage_rows import Observation
from gpusage_hooks.types import Code, DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class UnnamedTally:
    """Jobs that name no model, and the runs of such jobs that were checked.

    Attributes:
        jobs: Those that were looked at.
        told: Of how many their history told something.
        shares: How many got a share by it.
        withheld: How many would have got one, had it been enforced.
        checked: Runs whose figures were told before, of each user as many as count for trust.
        held: How many of these stayed below all upper ends.
    """

    jobs: int = 0
    told: int = 0
    shares: int = 0
    withheld: int = 0
    checked: int = 0
    held: int = 0


def unnamed(records: Sequence[DecisionRecord], observations: Sequence[Observation], least_s: float) -> UnnamedTally:
    """Return what became of the jobs of *records* that name no model, and of the runs in *observations*.

    Args:
        records: The decisions of a time.
        observations: The runs of that time.
        least_s: A run that was sampled for less shows nothing, as where a site's trust in history is counted.
    """
    jobs = [record for record in records if record.told or UNNAMED in record.decision.reasons]
    rewritten = [record for record in jobs if record.decision.code is Code.REWRITE]
    shares = sum(record.mode == "enforce" for record in rewritten)
    site = trust_of(checked_runs(observations, least_s)).site
    return UnnamedTally(
        jobs=len(jobs),
        told=sum(bool(record.told) for record in jobs),
        shares=shares,
        withheld=len(rewritten) - shares,
        checked=site.checked,
        held=site.held,
    )
