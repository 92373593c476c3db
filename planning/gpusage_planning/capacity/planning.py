"""A plan, made event by event: a job comes, a job ends, or some time has passed; each time somebody chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gpusage_planning.capacity.plan import Plan, least_cost, plan_of
from gpusage_planning.capacity.problem import NodeGroup, NodeType, Option, PlannedJob, node_types, options
from gpusage_planning.capacity.state import ActiveNode, Assignment, Choice, State, Waiting

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
        _admit(run)
        if run.state.waiting and run.state.has_room():
            choice = choose(run.state)
            _start(run, choice, lasts_s)
        _advance(run, tick_s)
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


def _admit(run: _Run) -> None:
    while run.coming and run.coming[-1].job.submitted_s <= run.state.now_s:
        run.state.admit(run.coming.pop())


def _advance(run: _Run, tick_s: float) -> None:
    """Go to the next event, and free what has ended by then."""
    arrival_s = run.coming[-1].job.submitted_s if run.coming else float("inf")
    tick = run.state.now_s + tick_s if run.state.waiting else float("inf")
    now_s = min(arrival_s, run.ends[0][0] if run.ends else float("inf"), tick)
    if now_s < float("inf"):
        run.state.now_s = now_s
        _finish_until(run, now_s)


def _finish_until(run: _Run, now_s: float) -> None:
    """Take off what has ended by *now_s*; a node without a job is off."""
    while run.ends and run.ends[0][0] <= now_s:
        _, _, node, ended = heappop(run.ends)
        node.end(ended)
        if not node.running:
            _close(run, node)


def _close(run: _Run, node: ActiveNode) -> None:
    run.state.active.remove(node)
    run.state.off[node.group.name].append(node.name)


def _start(run: _Run, choice: Choice, lasts_s: Callable[[PlannedJob, Option], float]) -> None:
    """Open nodes, and place what starts on them: the largest first, and jobs that end together side by side."""
    opened = [_open(run, group, kind) for (group, kind), count in choice.opened.items() for _ in range(count)]
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
