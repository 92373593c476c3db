"""GPU hours by user, account, partition and model: who took what, and who could have shared at what price.

Invariants:

1. Every job stands in one row; the rows add up to all jobs.
2. What no node saw has a row of its own, beside its column: it is of all groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from gpusage.experience.finished_jobs import LEAST_SAMPLED_S
from gpusage.reports.amounts import Amounts, amounts_of, total
from gpusage.reports.sharing import GpuLookup, PossibleShares, count_possible_shares, nowhere
from gpusage.store.usage_rows import Observation
from gpusage_hooks.types import SharingRules

Dimension = Literal["user", "account", "partition", "model"]
"""What jobs are grouped by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRules:
    """What a report's figures rest on besides the runs.

    Attributes:
        least_sampled_s: A run that was sampled for less shows nothing; the limit of what a site learns from.
        sharing: The site's rules, by which shares are priced.
        find_gpu: Knows the rows of the catalogue.
    """

    least_sampled_s: float = LEAST_SAMPLED_S
    sharing: SharingRules = field(default_factory=SharingRules)
    find_gpu: GpuLookup = nowhere


USUAL_RULES = ReportRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTally:
    """What the jobs of one user, account, partition or model took.

    Attributes:
        name: Empty where nobody told.
        possible: What shares would have saved of it; ``None`` where none could have shared.
    """

    name: str
    job_count: int
    hours: Amounts
    possible: PossibleShares | None


def model_of(observed: Observation) -> str:
    """Return the model that the job named; empty where it named none, or gpusage was not asked."""
    return (observed.decision.model if observed.decision else None) or ""


def account_of(observed: Observation) -> str:
    """Return the account or queue that pays, as its manager or its submission told; empty where neither did."""
    record = observed.decision
    return observed.usage.account or (record.identity.account if record and record.identity else "")


NAMES: Mapping[Dimension, Callable[[Observation], str]] = MappingProxyType(
    {
        "user": lambda observed: observed.usage.user,
        "account": account_of,
        "partition": lambda observed: observed.usage.partition,
        "model": model_of,
    }
)
"""By each dimension, the group of a run."""


def break_down(observations: Sequence[Observation], rules: ReportRules) -> Mapping[Dimension, tuple[GroupTally, ...]]:
    """Return what each group of jobs took, by each of `NAMES`, the group that booked most first."""
    return {dimension: _groups(observations, name_of, rules) for dimension, name_of in NAMES.items()}


def _groups(
    observations: Iterable[Observation], name_of: Callable[[Observation], str], rules: ReportRules
) -> tuple[GroupTally, ...]:
    members: dict[str, list[Observation]] = defaultdict(list)
    for each in observations:
        members[name_of(each)].append(each)
    tallies = (tally(name, of_group, rules) for name, of_group in members.items())
    return tuple(sorted(tallies, key=lambda group: (-group.hours.booked, group.name)))


def tally(name: str, observations: Sequence[Observation], rules: ReportRules) -> GroupTally:
    """Return what *observations* took together."""
    return GroupTally(
        name=name,
        job_count=len({(each.usage.manager, each.usage.job_id) for each in observations}),
        hours=total(amounts_of(each, rules.least_sampled_s) for each in observations),
        possible=count_possible_shares(observations, rules.sharing, rules.find_gpu, rules.least_sampled_s),
    )


def unseen_part(observations: Iterable[Observation], rules: ReportRules) -> GroupTally:
    """Return the part of *observations* of which nobody can tell what it used."""
    hours = [(each, amounts_of(each, rules.least_sampled_s)) for each in observations]
    return tally("", [each for each, amounts in hours if amounts.unseen], rules)
