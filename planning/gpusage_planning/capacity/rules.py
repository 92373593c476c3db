"""Simple rules to compare with: first come, earliest deadline, highest priority; no job is stopped for another.

Each rule takes the jobs in its order and gives each the way to run that costs least among those that fit now, or, of
those that meet the deadline, the cheapest. So it uses the same run times as the program does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpusage_planning.capacity.problem import NodeType, Option
from gpusage_planning.capacity.state import Choice, Order, State, Waiting

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
