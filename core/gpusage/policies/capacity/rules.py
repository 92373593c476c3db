"""Simple rules to compare with: first come, earliest deadline, highest priority; no job is stopped for another.

Each rule takes the jobs in its order and gives each the way to run that costs least among those that fit now, or, of
those that meet the deadline, the cheapest. So it uses the same run times as the program does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpusage.policies.capacity.problem import Option
from gpusage.policies.capacity.state import Choice, State, Waiting

Order = Callable[[Waiting], tuple[float, ...]]
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
        for index, each in sorted(enumerate(state.waiting), key=lambda item: order(item[1])):
            option = _best_option(each, room, state.now_s)
            if option is None:
                break
            room.reserve(option)
            starts.append((index, option))
        return Choice(starts=starts, opened=room.opened)

    return choose


class _Room:
    """Free GPUs by node while a rule chooses; a node that is off is opened where no other has room."""

    def __init__(self, state: State) -> None:
        self.free = [(node.type.name, node.free_count) for node in state.active]
        self.closed = list(state.closed())
        self.off = Counter({name: len(names) for name, names in state.off.items()})
        self.opened: Counter[tuple[str, str]] = Counter()

    def fits(self, option: Option) -> bool:
        """Tell whether *option* could start."""
        return self._opens(option) is not None or any(
            name == option.type.name and count >= option.gpu_count for name, count in self.free
        )

    def reserve(self, option: Option) -> None:
        """Take the GPUs of *option*, on the fullest active node that has them, or on a new one."""
        name, needed = option.type.name, option.gpu_count
        fitting = [place for place, (kind, count) in enumerate(self.free) if kind == name and count >= needed]
        if fitting:
            place = min(fitting, key=lambda place: self.free[place][1])
            self.free[place] = (name, self.free[place][1] - needed)
        elif (group := self._opens(option)) is not None:
            self.off[group] -= 1
            self.opened[group, name] += 1
            self.free.append((name, option.type.gpu_count - needed))

    def _opens(self, option: Option) -> str | None:
        names = (group.name for group, kind in self.closed if kind.name == option.type.name)
        return next((name for name in names if self.off[name]), None)


def _best_option(each: Waiting, room: _Room, now_s: float) -> Option | None:
    """Return the cheapest option that meets the deadline, else the fastest; ``None`` where none fits."""
    fitting = [option for option in each.options if room.fits(option)]
    in_time = [option for option in fitting if now_s + option.time_s <= each.job.latest_end_s]
    if in_time:
        return min(in_time, key=lambda option: (option.cost, option.time_s))
    return min(fitting, key=lambda option: (option.time_s, option.cost), default=None)
