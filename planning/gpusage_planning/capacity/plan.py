"""A plan: who runs where and when, which nodes are active meanwhile, and what all that costs.

It is made event by event: a job comes, a job ends, or some time has passed; each time a rule or a program chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gpusage_hooks.units import HOUR_S
from gpusage_planning.capacity.problem import (
    ActiveNode,
    Assignment,
    Choice,
    NodeGroup,
    NodeType,
    Option,
    PlannedJob,
    State,
    Waiting,
    node_types,
    options,
)
from gpusage_planning.capacity.problem import NodeGroup as Group

SCHEMA = "gpusage.plan/1"
"""Of a plan as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """A time in which a node was on, of one type; its boot is counted in."""

    node: str
    type: NodeType
    start_s: float
    end_s: float

    @property
    def ready_s(self) -> float:
        """Return when it has booted."""
        return self.start_s + self.type.boot_s

    @property
    def billed_s(self) -> float:
        """Return the time that is billed."""
        return self.type.billed_s(self.end_s - self.start_s)

    @property
    def cost(self) -> float:
        """Return its price."""
        return self.type.cost(self.end_s - self.start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who runs where and when.

    Attributes:
        active: When each node is on.
        bound: No plan can cost less than this.
    """

    assignments: tuple[Assignment, ...]
    active: tuple[Active, ...]
    bound: float

    @property
    def node_cost(self) -> float:
        """Return the price of the active nodes."""
        return sum(each.cost for each in self.active)

    @property
    def boot_cost(self) -> float:
        """Return the part of the nodes' price that is for booting."""
        return sum(each.type.boot_s / HOUR_S * each.type.price_per_hour for each in self.active)

    @property
    def unused_cost(self) -> float:
        """Return the part of the nodes' price that is for time after they were switched off."""
        return sum(
            (each.billed_s - (each.end_s - each.start_s)) / HOUR_S * each.type.price_per_hour for each in self.active
        )

    @property
    def late_cost(self) -> float:
        """Return the price of all deadlines that are missed."""
        return sum(each.job.late_cost(each.end_s) for each in self.assignments)

    @property
    def cost(self) -> float:
        """Return what the plan costs."""
        return self.node_cost + self.late_cost

    @property
    def gap(self) -> float | None:
        """Return how much less the best plan can cost at most, as a share of this one's cost; ``None`` if unknown."""
        return max(self.cost - self.bound, 0.0) / self.cost if self.bound > 0.0 else None

    @property
    def end_s(self) -> float:
        """Return when the last job ends."""
        return max((each.end_s for each in self.assignments), default=0.0)


def plan_of(assignments: Sequence[Assignment], bound: float) -> Plan:
    """Return the plan with these *assignments*; each node is on as `on_times` has it."""
    by_node: dict[str, list[Assignment]] = {}
    for each in sorted(assignments, key=lambda each: (each.start_s, each.job.name)):
        by_node.setdefault(each.node, []).append(each)
    active = [
        Active(node=node, type=kind, start_s=start_s, end_s=end_s)
        for node, own in by_node.items()
        for kind, start_s, end_s in on_times((each.start_s, each.end_s, each.option.type) for each in own)
    ]
    return Plan(assignments=tuple(assignments), active=tuple(active), bound=bound)


def on_times(own: Iterable[tuple[float, float, NodeType]]) -> Iterator[tuple[NodeType, float, float]]:
    """Yield as what a node is on, from when to when, boots counted in.

    Between two jobs it stays on where that is cheaper, or where there is no time to boot it again.

    Args:
        own: Of its jobs, in the order of their starts: start, end, and the type that they need.
    """
    kind, begin_s, until_s = None, 0.0, 0.0
    for start_s, end_s, own_kind in own:
        if kind is not None and own_kind == kind and _stays_on(kind, begin_s, until_s, start_s, end_s):
            until_s = max(until_s, end_s)
            continue
        if kind is not None:
            yield kind, begin_s, until_s
        kind, begin_s, until_s = own_kind, start_s - own_kind.boot_s, end_s

    if kind is not None:
        yield kind, begin_s, until_s


def _stays_on(kind: NodeType, begin_s: float, until_s: float, start_s: float, end_s: float) -> bool:
    if start_s - until_s <= kind.boot_s:
        return True
    if kind.is_billed_by_use:
        return False
    again = kind.cost(until_s - begin_s) + kind.cost(end_s - start_s + kind.boot_s)
    return kind.cost(max(until_s, end_s) - begin_s) < again


def _end_s(job: PlannedJob, way: Option) -> float:
    """Return when *job* ends at the earliest: a node is off at first."""
    return max(job.submitted_s, way.type.boot_s) + way.time_s


def least_cost(jobs: Sequence[PlannedJob], groups: Sequence[Group]) -> float:
    """Return what no plan can undercut, the higher of two bounds.

    Each job runs at once in its cheapest way, and a node costs what those of its GPUs cost that are used; one node
    boots. Or one job's node costs its whole bill, the others' nothing, and the others are as little late as they can
    be.
    """
    types = node_types(groups)
    ways = [[way for way in options(job, types) if _end_s(job, way) <= way.type.until_s] for job in jobs]
    late = [[job.late_cost(_end_s(job, way)) for way in own] for job, own in zip(jobs, ways, strict=True)]
    shared = sum(
        min(way.cost + cost for way, cost in zip(own, costs, strict=True))
        for own, costs in zip(ways, late, strict=True)
    )
    boot = min((kind.boot_s / HOUR_S * kind.price_per_hour for kind in types), default=0.0) if jobs else 0.0
    least_late = sum(map(min, late))
    alone = (
        min(way.type.cost(way.time_s + way.type.boot_s) + cost for way, cost in zip(own, costs, strict=True))
        - min(costs)
        for own, costs in zip(ways, late, strict=True)
    )

    return max(shared + boot, least_late + max(alone, default=0.0))


Chooser = Callable[[State], Choice]
TICK_S = 300.0
"""After so much time without an event somebody chooses again (H in the paper)."""


@dataclass(slots=True, kw_only=True)
class _Run:
    """A plan in the making.

    Attributes:
        coming: Jobs that are not submitted yet, the next one last.
        ends: What runs, a heap by its end; the numbers order equal ends.
    """

    state: State
    coming: list[Waiting]
    ends: list[tuple[float, int, ActiveNode, Assignment]] = field(default_factory=list)
    done: list[Assignment] = field(default_factory=list)


def as_planned(_: PlannedJob, option: Option) -> float:
    """Return how long a job runs where predictions are right."""
    return option.time_s


def make_plan(
    jobs: Sequence[PlannedJob],
    groups: Sequence[NodeGroup],
    choose: Chooser,
    tick_s: float = TICK_S,
    lasts_s: Callable[[PlannedJob, Option], float] = as_planned,
) -> Plan:
    """Return the plan in which *choose* says at each event what starts.

    Args:
        jobs: Each can run on at least one type of node that stays; none is known before it is submitted.
        groups: The nodes.
        choose: The program of `gpusage_planning.capacity.decision`, or a rule.
        tick_s: The longest time between two choices while a job waits, above 0.
        lasts_s: How long a job really runs; *choose* sees what was predicted, and that a job has ended.
    """
    run = _begin(jobs, groups)
    while run.coming or run.state.waiting:
        while run.coming and run.coming[-1].job.submitted_s <= run.state.now_s:
            run.state.admit(run.coming.pop())
        if run.state.waiting and run.state.has_room():
            choice = choose(run.state)
            _start(run, choice, lasts_s)

        arrival_s = run.coming[-1].job.submitted_s if run.coming else float("inf")
        tick = run.state.now_s + tick_s if run.state.waiting else float("inf")
        now_s = min(arrival_s, run.ends[0][0] if run.ends else float("inf"), tick)
        if now_s < float("inf"):
            run.state.now_s = now_s

            # Take off what has ended by now_s; a node without a job is off.
            while run.ends and run.ends[0][0] <= now_s:
                _, _, node, ended = heappop(run.ends)
                node.end(ended)
                if not node.running:
                    _close(run, node)
    return plan_of(run.done, least_cost(jobs, groups))


def waiting(job: PlannedJob, groups: Sequence[NodeGroup]) -> Waiting:
    """Return *job* with each way to run it."""
    ways = options(job, node_types(groups))
    return Waiting(
        job=job,
        options=ways,
        cheapest=min(ways, key=lambda option: (option.cost, option.time_s)),
        fastest=min(ways, key=lambda option: (option.time_s, option.cost)),
        times_s=tuple({(way.type.pool, way.gpu_count): way.time_s for way in ways}.items()),
    )


def _begin(jobs: Sequence[PlannedJob], groups: Sequence[NodeGroup]) -> _Run:
    coming = [waiting(job, groups) for job in sorted(jobs, key=lambda job: job.submitted_s)]
    off = {group.name: [*group.node_names][::-1] for group in groups}
    now_s = coming[0].job.submitted_s if coming else 0.0
    state = State(now_s=now_s, groups=tuple(groups), waiting=[], active=[], off=off)
    return _Run(state=state, coming=coming[::-1])


def _close(run: _Run, node: ActiveNode) -> None:
    run.state.active.remove(node)
    run.state.off[node.group.name].append(node.name)


def _start(run: _Run, choice: Choice, lasts_s: Callable[[PlannedJob, Option], float]) -> None:
    """Open nodes, and place what starts on them: the largest first, and jobs that end together side by side."""
    opened = [_open(run, group, kind) for (group, kind), count in choice.opened.items() for _ in range(count)]
    # Sizes are powers of two, so the largest first always find room where the program saw enough.
    order = sorted(choice.starts, key=lambda start: (-start[1].gpu_count, -start[1].time_s))

    for each, option in order:
        node = _node_for(run, option)
        start_s = max(run.state.now_s, node.ready_s)
        end_s = start_s + lasts_s(each.job, option)
        start = Assignment(job=each.job, node=node.name, option=option, start_s=start_s, end_s=end_s)
        node.start(start)
        run.state.remove(each)
        heappush(run.ends, (end_s, len(run.done), node, start))
        run.done.append(start)

    for node in opened:
        if not node.running:
            _close(run, node)


def _open(run: _Run, group_name: str, kind: NodeType) -> ActiveNode:
    group = next(group for group in run.state.groups if group.name == group_name)
    node = ActiveNode(
        name=run.state.off[group_name].pop(),
        group=group,
        type=kind,
        ready_s=run.state.now_s + kind.boot_s,
        running=[],
        free_count=kind.gpu_count,
    )
    run.state.active.append(node)
    return node


def _node_for(run: _Run, option: Option) -> ActiveNode:
    """Return the fullest node that has room; of equals, the one whose jobs end nearest."""
    end_s = run.state.now_s + option.time_s
    return min(
        (node for node in run.state.active if node.free_count >= option.gpu_count and node.type == option.type),
        key=lambda node: (node.free_count, abs(max((each.end_s for each in node.running), default=end_s) - end_s)),
    )
