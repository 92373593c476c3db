"""The whole plan: by plain rules, by the program, and then improved; a large problem in parts.

A part has some of the nodes of each group, and jobs that are dealt to it by their deadlines, so that all parts have
as much to do for each of their GPUs. Each is planned by itself, so that the time grows with the jobs, not with their
square.

The plain rules are first come, earliest deadline and highest priority; no job is stopped for another. Each takes the
jobs in its order and gives each the way to run that costs least among those that fit now, or, of those that meet the
deadline, the cheapest. So it uses the same run times as the program does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from gpusage_planning.capacity.plan import Chooser, Plan, make_plan, plan_of
from gpusage_planning.capacity.problem import (
    Choice,
    NodeGroup,
    NodeType,
    Option,
    Order,
    PlannedJob,
    State,
    Waiting,
    node_types,
    options,
    stays,
)
from gpusage_planning.capacity.search import MOST_TRIES, best_plan

RULES: Mapping[str, Order] = MappingProxyType(
    {
        "first come": lambda each: (each.job.submitted_s,),
        "earliest deadline": lambda each: (each.job.latest_end_s, each.job.submitted_s),
        "highest priority": lambda each: (-each.job.priority, each.job.submitted_s),
    }
)


def by_rule(order: Order) -> Callable[[State], Choice]:
    """Return what chooses in this *order*; a job that does not fit holds up those behind it."""

    def choose(state: State) -> Choice:
        room = _Room(state)
        starts = []
        for each in state.in_order(order):
            option = _best_option(each, room)
            if option is None:
                break
            room.reserve(option)
            starts.append((each, option))

        return Choice(starts=starts, opened=room.opened)

    return choose


class _Room:
    """Free GPUs by node while a rule chooses; a node that is off is opened where no other has room."""

    def __init__(self, state: State) -> None:
        self.now_s = state.now_s
        self.free: dict[NodeType, list[tuple[int, float]]] = {}
        """Of each node of a type that has some: how many are free, and when it has booted."""
        for node in state.active:
            if node.free_count:
                self.free.setdefault(node.type, []).append((node.free_count, node.ready_s))

        self.groups: dict[NodeType, list[str]] = {}
        for group, kind in state.closed():
            self.groups.setdefault(kind, []).append(group.name)
        self.off = Counter({name: len(names) for name, names in state.off.items()})
        self.opened: Counter[tuple[str, NodeType]] = Counter()

    def end_s(self, option: Option) -> float | None:
        """Return when a job would end that starts now as *option* says, ``None`` where that does not fit."""
        fitting = [ready_s for count, ready_s in self.free.get(option.type, ()) if count >= option.gpu_count]
        if not fitting and self._opens(option) is None:
            return None
        # Of the nodes that have room, `planning` takes the fullest, which may be the last to be ready.
        ready_s = max(self.now_s, *fitting) if fitting else self.now_s + option.type.boot_s
        end_s = ready_s + option.time_s
        return end_s if end_s <= option.type.until_s else None

    def reserve(self, option: Option) -> None:
        """Take the GPUs of *option*, on the fullest active node that has them, or on a new one."""
        nodes = self.free.setdefault(option.type, [])
        fitting = [node for node in nodes if node[0] >= option.gpu_count]
        if fitting:
            count, ready_s = min(fitting)
            nodes.remove((count, ready_s))
        elif (group := self._opens(option)) is not None:
            self.off[group] -= 1
            self.opened[group, option.type] += 1
            count, ready_s = option.type.gpu_count, self.now_s + option.type.boot_s

        if count > option.gpu_count:
            nodes.append((count - option.gpu_count, ready_s))

    def _opens(self, option: Option) -> str | None:
        return next((name for name in self.groups.get(option.type, ()) if self.off[name]), None)


def _best_option(each: Waiting, room: _Room) -> Option | None:
    """Return the cheapest option that meets the deadline, else the one that ends first; ``None`` where none fits."""
    ends_s = {option: end_s for option in each.options if (end_s := room.end_s(option)) is not None}
    in_time = [option for option, end_s in ends_s.items() if end_s <= each.job.latest_end_s]
    if in_time:
        return min(in_time, key=lambda option: (option.cost, option.time_s))
    return min(ends_s, key=lambda option: (ends_s[option], option.cost), default=None)


MOST_PLACES = 200_000
"""Jobs times nodes of a part: a thousand jobs on 200 nodes take some ten seconds."""
RULES_SHARE, PROGRAM_SHARE = 0.02, 0.6
"""When the rules' plans and a part's program end, as shares of the time: for the progress bar, and with a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What looks at the clock, and at how far planning is; policies themselves do not.

    Attributes:
        spent: Returns which share of the time is over, 0 where there is no limit.
        report: Called with the share of the work that is done.
        begin: The share of work and time at which this watch begins.
        end: The one at which it ends.
    """

    spent: Callable[[], float] = lambda: 0.0
    report: Callable[[float], None] = lambda _: None
    begin: float = 0.0
    end: float = 1.0

    def between(self, begin: float, end: float) -> Watch:
        """Return the watch of a part of the work, from *begin* to *end*, both 0 to 1."""
        length = self.end - self.begin
        return replace(self, begin=self.begin + begin * length, end=self.begin + end * length)

    def is_over(self, done: float) -> bool:
        """Report the share *done* of this work, and return whether its time is over."""
        self.report(self.begin + min(done, 1.0) * (self.end - self.begin))
        return self.spent() >= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of the jobs on some of the nodes."""

    jobs: Sequence[PlannedJob]
    groups: Sequence[NodeGroup]


def whole_plan(
    jobs: Sequence[PlannedJob], groups: Sequence[NodeGroup], choose: Chooser, watch: Watch
) -> tuple[Plan, Mapping[str, Plan]]:
    """Return the cheapest plan that is found, and those of each rule and of the program.

    Args:
        jobs: The jobs, by names that differ.
        groups: The nodes.
        choose: The program of `gpusage_planning.capacity.decision`.
        watch: Where its time is over, the earliest deadline chooses in place of the program, and nothing is improved.
    """
    others = {name: make_plan(jobs, groups, by_rule(order)) for name, order in RULES.items()}
    watch = watch.between(RULES_SHARE, 1.0)
    parts = divided(jobs, groups)
    if len(parts) == 1:
        others["program"] = _by_program(parts[0], choose, watch)
        return _improved(parts[0], others, watch), others

    programs, plans = [], []
    for place, part in enumerate(parts):
        own = watch.between(place / len(parts), (place + 1) / len(parts))
        starts = {name: make_plan(part.jobs, part.groups, by_rule(order)) for name, order in RULES.items()}
        programs.append(_by_program(part, choose, own))
        plans.append(_improved(part, {**starts, "program": programs[-1]}, own))

    bound = next(iter(others.values())).bound
    others["program"] = _joined(programs, bound)
    return min((_joined(plans, bound), *others.values()), key=lambda each: each.cost), others


def _by_program(part: Part, choose: Chooser, watch: Watch) -> Plan:
    own, started = watch.between(0.0, PROGRAM_SHARE), 0
    earliest_deadline = by_rule(RULES["earliest deadline"])

    def choose_in_time(state: State) -> Choice:
        nonlocal started
        choice = (earliest_deadline if own.is_over(started / len(part.jobs)) else choose)(state)
        started += len(choice.starts)
        return choice

    return make_plan(part.jobs, part.groups, choose_in_time)


def _improved(part: Part, starts: Mapping[str, Plan], watch: Watch) -> Plan:
    own = watch.between(PROGRAM_SHARE, 1.0)
    return best_plan(part.jobs, part.groups, starts.values(), is_over=lambda tries: own.is_over(tries / MOST_TRIES))


def _joined(plans: Sequence[Plan], bound: float) -> Plan:
    assignments = (each for plan in plans for each in plan.assignments)
    return plan_of(sorted(assignments, key=lambda each: (each.start_s, each.job.name)), bound)


def divided(jobs: Sequence[PlannedJob], groups: Sequence[NodeGroup], most_places: int = MOST_PLACES) -> list[Part]:
    """Return the problem in parts of about *most_places* jobs times nodes, each with at least one node."""
    node_count = sum(group.node_count for group in groups)
    count = min(math.ceil(math.sqrt(len(jobs) * node_count / most_places)), node_count)
    if count <= 1:
        return [Part(jobs=jobs, groups=groups)]

    shares = _distribute_nodes(groups, count)
    types = [node_types(own) for own in shares]
    different = list(dict.fromkeys(types))
    kinds_of = [different.index(kinds) for kinds in types]
    gpu_counts = [
        sum(group.node_count * max(kind.gpu_count for kind in group.types) for group in own) for own in shares
    ]
    loads_s = [0.0] * count
    dealt: list[list[PlannedJob]] = [[] for _ in shares]

    for job in sorted(jobs, key=lambda job: (job.latest_end_s, job.submitted_s, job.name)):
        least_work_s = [_work_s(job, kinds) for kinds in different]
        possible = (place for place in range(count) if least_work_s[kinds_of[place]] < math.inf)
        place = min(possible, key=loads_s.__getitem__)
        loads_s[place] += least_work_s[kinds_of[place]] / gpu_counts[place]
        dealt[place].append(job)

    return [Part(jobs=own, groups=nodes) for own, nodes in zip(dealt, shares, strict=True) if own]


def _distribute_nodes(groups: Sequence[NodeGroup], count: int) -> list[list[NodeGroup]]:
    """Return the nodes of *groups* in *count* parts: each gets as many of a group as every other, or one more."""
    shares: list[list[NodeGroup]] = [[] for _ in range(count)]
    dealt = 0
    for group in groups:
        for place in range(count):
            names = group.node_names[(place - dealt) % count :: count]
            if names:
                shares[place].append(replace(group, node_count=len(names), names=names))
        dealt += group.node_count

    return shares


def _work_s(job: PlannedJob, kinds: Sequence[NodeType]) -> float:
    """Return the least GPU seconds of *job* on those of these types that stay, infinity where it can run on none."""
    return min((way.gpu_count * way.time_s for way in options(job, kinds) if stays(way)), default=math.inf)
