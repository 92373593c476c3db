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
from gpusage.reports.jobs import count_jobs, is_on_several_nodes, runs_by_job
from gpusage.reports.sharing import (
    GpuLookup,
    PossibleShare,
    PossibleShares,
    count_possible_shares,
    joined_shares,
    no_gpu,
    possible_share,
)
from gpusage.store.rows import Observation
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
    find_gpu: GpuLookup = no_gpu


USUAL_RULES = ReportRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTally:
    """What the jobs of one user, account, partition or model took.

    Attributes:
        name: Empty if unknown.
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
    """Return the account or queue that pays, as its manager or its submission names it; empty if neither does."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """What jobs took by each of `NAMES`, the group that booked most first.

    Attributes:
        all_jobs: The same of all jobs.
        unseen: The same of what nobody saw.
    """

    groups: Mapping[Dimension, tuple[GroupTally, ...]]
    all_jobs: GroupTally
    unseen: GroupTally


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    observed: Observation
    hours: Amounts
    share: PossibleShare | None


def break_down(observations: Iterable[Observation], rules: ReportRules) -> Breakdown:
    """Return what each group of jobs took."""
    runs = []
    for of_job in runs_by_job(observations):
        may_share = not is_on_several_nodes(of_job)
        for each in of_job:
            share = possible_share(each, rules.sharing, rules.find_gpu, rules.least_sampled_s) if may_share else None
            runs.append(_Run(observed=each, hours=amounts_of(each, rules.least_sampled_s), share=share))
    return Breakdown(
        groups={dimension: _groups(runs, name_of) for dimension, name_of in NAMES.items()},
        all_jobs=_tally("", runs),
        unseen=_tally("", [run for run in runs if run.hours.unseen]),
    )


def _groups(runs: Iterable[_Run], name_of: Callable[[Observation], str]) -> tuple[GroupTally, ...]:
    members: dict[str, list[_Run]] = defaultdict(list)
    for run in runs:
        members[name_of(run.observed)].append(run)
    tallies = (_tally(name, of_group) for name, of_group in members.items())
    return tuple(sorted(tallies, key=lambda group: (-group.hours.booked, group.name)))


def joined(groups: Sequence[GroupTally]) -> GroupTally:
    """Return *groups*, which have no job in common, as one."""
    return GroupTally(
        name="",
        job_count=sum(group.job_count for group in groups),
        hours=total(group.hours for group in groups),
        possible=joined_shares([group.possible for group in groups if group.possible is not None]),
    )


def _tally(name: str, runs: Sequence[_Run]) -> GroupTally:
    return GroupTally(
        name=name,
        job_count=count_jobs(run.observed for run in runs),
        hours=total(run.hours for run in runs),
        possible=count_possible_shares((run.observed, run.hours.booked, run.share) for run in runs if run.share),
    )
