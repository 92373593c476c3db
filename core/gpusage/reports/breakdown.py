"""GPU hours by user, account, partition, model and GPU type, and the shares that each group could have had.

Invariants:

1. Every job stands in a single row; the rows add up to all jobs.
2. Unseen hours have a row of their own, beside their column: they belong to all groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from gpusage.experience.finished_jobs import LEAST_SAMPLED_S
from gpusage.reports.amounts import Amounts, amounts_of, total
from gpusage.reports.jobs import count_jobs, is_on_several_nodes, runs_by_job
from gpusage.reports.sharing import (
    Freed,
    GpuLookup,
    PossibleShare,
    PossibleShares,
    count_possible_shares,
    freed_by,
    joined_shares,
    no_gpu,
    possible_share,
)
from gpusage.store.rows import Observation
from gpusage_hooks.types import SharingRules

Dimension = Literal["user", "account", "partition", "model", "gpu"]
"""A property that groups jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRules:
    """Inputs of a report besides the runs.

    Attributes:
        least_sampled_s: A run with less sampled time shows nothing; the site's limit for learning.
        sharing: The site's rules for prices of shares.
        find_gpu: Finds rows of the catalogue.
    """

    least_sampled_s: float = LEAST_SAMPLED_S
    sharing: SharingRules = field(default_factory=SharingRules)
    find_gpu: GpuLookup = no_gpu


USUAL_RULES = ReportRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTally:
    """GPU hours of the jobs of a user, account, partition, model or GPU type.

    Attributes:
        name: Empty if unknown.
        possible: What possible shares would free; ``None`` where no job could have shared.
    """

    name: str
    job_count: int
    hours: Amounts
    possible: PossibleShares | None


def model_of(observed: Observation) -> str:
    """Return the model that the job named; empty without a name or a decision."""
    return (observed.decision.model if observed.decision else None) or ""


def account_of(observed: Observation) -> str:
    """Return the account or queue that pays; empty if neither the manager nor the submission names it."""
    # Accounting knows the default account of a user; a submission only an account that it names.
    record = observed.decision
    return observed.usage.account or (record.identity.account if record and record.identity else "")


NAMES: Mapping[Dimension, Callable[[Observation], str]] = MappingProxyType(
    {
        "user": lambda observed: observed.usage.user,
        "account": account_of,
        "partition": lambda observed: observed.usage.partition,
        "model": model_of,
        "gpu": lambda observed: observed.usage.gpu,
    }
)
"""Each dimension's function from a run to its group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    observed: Observation
    hours: Amounts
    share: PossibleShare | None
    freed: Freed = (0.0, 0.0)


def break_down(
    observations: Iterable[Observation], rules: ReportRules
) -> tuple[Mapping[Dimension, tuple[GroupTally, ...]], GroupTally, GroupTally]:
    """Return the GPU hours by each of `NAMES`, of all jobs, and of the runs that nobody sampled.

    The group with the most booked hours comes first.
    """
    runs = []
    for of_job in runs_by_job(observations):
        # A share lies on one node.
        may_share = not is_on_several_nodes(of_job)
        for each in of_job:
            share = possible_share(each, rules.sharing, rules.find_gpu, rules.least_sampled_s) if may_share else None
            runs.append(_Run(observed=each, hours=amounts_of(each, rules.least_sampled_s), share=share))

    # Shares free something beside each other only, so all of them are placed together.
    freed = iter(freed_by([(run.observed, run.share) for run in runs if run.share]))
    runs = [replace(run, freed=next(freed)) if run.share else run for run in runs]

    groups: dict[Dimension, tuple[GroupTally, ...]] = {}
    for dimension, name_of in NAMES.items():
        members: dict[str, list[_Run]] = defaultdict(list)
        for run in runs:
            members[name_of(run.observed)].append(run)
        tallies = (_tally(name, of_group) for name, of_group in members.items())
        # The name breaks ties, so that a report of the same runs is the same text.
        groups[dimension] = tuple(sorted(tallies, key=lambda group: (-group.hours.booked, group.name)))

    return groups, _tally("", runs), _tally("", [run for run in runs if run.hours.unseen])


def joined(groups: Sequence[GroupTally]) -> GroupTally:
    """Return the sum of *groups*, which have no job in common."""
    return GroupTally(
        name="",
        job_count=sum(group.job_count for group in groups),
        hours=total(group.hours for group in groups),
        possible=joined_shares([group.possible for group in groups if group.possible is not None]),
    )


def _tally(name: str, runs: Sequence[_Run]) -> GroupTally:
    # A job counts once, however many runs it has; hours and savings are of all its runs.
    return GroupTally(
        name=name,
        job_count=count_jobs(run.observed for run in runs),
        hours=total(run.hours for run in runs),
        possible=count_possible_shares(
            (run.observed, run.hours.booked, run.share, run.freed) for run in runs if run.share
        ),
    )
