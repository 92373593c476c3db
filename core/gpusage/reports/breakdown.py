"""GPU hours by user, account, partition, model and GPU type, and the shares that each group could have had.

Invariants:

1. Every job stands in a single row; the rows add up to all jobs.
2. Unseen hours have a row of their own, beside their column: they belong to all groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from gpusage.experience.finished_jobs import LEAST_SAMPLED_S
from gpusage.reports import joining, sharing
from gpusage.reports.amounts import Amounts, amounts_of, total
from gpusage.reports.freed import STAY, freed_by
from gpusage.reports.jobs import count_jobs, is_on_several_nodes, runs_by_job
from gpusage.reports.sharing import GpuLookup
from gpusage.store.rows import Observation
from gpusage_hooks.types import SharingRules
from gpusage_hooks.units import HOUR_S

Dimension = Literal["user", "account", "partition", "model", "gpu"]
"""A property that groups jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRules:
    """Inputs of a report besides the runs.

    Attributes:
        least_sampled_s: A run with less sampled time shows nothing; the site's limit for learning.
        sharing: The site's rules for prices of shares.
        find_gpu: Finds rows of the catalogue.
        smallest_shares: As in `Cluster`, of the last week before the report.
    """

    least_sampled_s: float = LEAST_SAMPLED_S
    sharing: SharingRules = field(default_factory=SharingRules)
    find_gpu: GpuLookup = lambda _: None
    smallest_shares: Mapping[str, int] = field(default_factory=dict)


USUAL_RULES = ReportRules()


class GroupTally(msgspec.Struct, frozen=True, kw_only=True):
    """GPU hours of the jobs of a user, account, partition, model or GPU type.

    Attributes:
        name: Empty if unknown.
        possible: What possible shares would free; ``None`` where no job could have shared.
    """

    KEY: ClassVar = ("name",)
    name: str
    job_count: int
    hours: Amounts
    possible: sharing.PossibleShares | None

    @property
    def rank(self) -> tuple[float, str]:
        """Return the place in a table; the name breaks ties, so that a report of the same runs is the same text."""
        return -self.hours.booked, self.name


def model_of(observed: Observation) -> str:
    """Return the model that the job named; empty without a name or a decision."""
    return (observed.decision.model if observed.decision else None) or ""


def account_of(observed: Observation) -> str:
    """Return the account or queue that pays; empty if neither the manager nor the submission names it."""
    # Accounting knows the default account of a user; a submission only an account that it names.
    record = observed.decision
    return observed.usage.account or (record.identity.account if record and record.identity else "")


NAMES: Mapping[Dimension, Callable[[Observation], str]] = {
    "user": lambda observed: observed.usage.user,
    "account": account_of,
    "partition": lambda observed: observed.usage.partition,
    "model": model_of,
    "gpu": lambda observed: observed.usage.gpu,
}
"""Each dimension's function from a run to its group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    observed: Observation
    hours: Amounts
    share: sharing.PossibleShare | None


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """GPU hours by each of `NAMES`, the group with the most booked hours first.

    Attributes:
        all_jobs: GPU hours of all jobs.
        unseen: GPU hours of runs that nobody sampled.
        stays: Where and when the possible shares ran, as `STAY`, by the names of their groups as JSON. They free
            something beside each other only, so what they free is known once all are together: see `with_freed`, after
            which this is empty.
    """

    groups: Mapping[Dimension, tuple[GroupTally, ...]]
    all_jobs: GroupTally
    unseen: GroupTally
    stays: Mapping[str, bytes]


Sums = TypeVar("Sums", bound=Breakdown)


def break_down(observations: Iterable[Observation], rules: ReportRules) -> Breakdown:
    """Return the GPU hours of *observations* by group, without what shares would free."""
    runs = []
    for of_job in runs_by_job(observations):
        # A share lies on one node.
        may_share = not is_on_several_nodes(of_job)
        for each in of_job:
            share = None
            if may_share:
                limits = (rules.least_sampled_s, rules.smallest_shares)
                share = sharing.possible_share(each, rules.sharing, rules.find_gpu, *limits)
            runs.append(_Run(observed=each, hours=amounts_of(each, rules.least_sampled_s), share=share))

    groups: dict[Dimension, tuple[GroupTally, ...]] = {}
    for dimension, name_of in NAMES.items():
        members = joining.grouped((name_of(run.observed), run) for run in runs)
        tallies = (_tally(name, of_group) for name, of_group in members.items())
        groups[dimension] = tuple(sorted(tallies, key=lambda group: group.rank))

    stays: dict[str, list[tuple[float, float, float, float, int]]] = defaultdict(list)
    for run in runs:
        if run.share:
            usage = run.observed.usage
            names = [name_of(run.observed) for name_of in NAMES.values()]
            key = msgspec.json.encode([*names, "unseen" if run.hours.unseen else ""]).decode()
            duration_s = max(0.0, usage.ended_at_s - usage.started_at_s)
            prices = run.share.slowdown, run.share.worst_slowdown
            stays[key].append((usage.started_at_s, duration_s, *prices, run.share.share_percent))
    return Breakdown(
        groups=groups,
        all_jobs=_tally("", runs),
        unseen=_tally("", [run for run in runs if run.hours.unseen]),
        stays={key: np.array(of_key, STAY).tobytes() for key, of_key in stays.items()},
    )


def with_freed(sums: Sums) -> Sums:
    """Return *sums* of a whole period with what the shares would have freed, by a replay of when they ran."""
    stays = {tuple[str, ...](msgspec.json.decode(key)): packed for key, packed in sums.stays.items()}
    freed_s: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    order = [*NAMES]
    for names, each_s in freed_by(stays, order.index("gpu"), order.index("user")).items():
        for group in [*zip(order, names, strict=False), ("all", ""), ("unseen", names[-1])]:
            freed_s[group] = [one_s + other_s for one_s, other_s in zip(freed_s[group], each_s, strict=True)]

    def freed(dimension: str, group: GroupTally, name: str) -> GroupTally:
        if group.possible is None:
            return group
        names = ("freed_hours", "most_freed_hours", "least_freed_hours")
        hours = {name: each_s / HOUR_S for name, each_s in zip(names, freed_s[dimension, name], strict=True)}
        return replace(group, possible=replace(group.possible, **hours))

    return replace(
        sums,
        groups={
            dimension: tuple(freed(dimension, each, each.name) for each in groups)
            for dimension, groups in sums.groups.items()
        },
        all_jobs=freed("all", sums.all_jobs, ""),
        unseen=freed("unseen", sums.unseen, "unseen"),
        stays={},
    )


def joined(groups: Sequence[GroupTally]) -> GroupTally:
    """Return the sum of *groups*, which have no job in common."""
    return GroupTally(
        name="",
        job_count=sum(group.job_count for group in groups),
        hours=total(group.hours for group in groups),
        possible=joining.joined([None, *(group.possible for group in groups)]),
    )


def _tally(name: str, runs: Sequence[_Run]) -> GroupTally:
    # A job counts once, however many runs it has; hours and savings are of all its runs.
    return GroupTally(
        name=name,
        job_count=count_jobs(run.observed for run in runs),
        hours=total(run.hours for run in runs),
        possible=sharing.count_possible_shares((run.observed, run.share) for run in runs if run.share),
    )
