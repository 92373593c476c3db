"""GPU time that shares would free, by a replay of when their jobs ran.

Invariants:

1. k jobs on one GPU at a time free k - 1 GPUs; what is left of a GPU beside a job frees nothing.
2. A job starts when it did. On its share it takes longer, by its price beside partners.
3. A share is placed on the fullest GPU of its type that it fits on and that others hold; else on one of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpusage_hooks.units import WHOLE_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A job's time on one whole GPU, and the share that would have been enough.

    Attributes:
        gpu: Name of the GPU's type.
        user: By name.
        slowdown: Run time on the share beside partners, over *duration_s*.
    """

    gpu: str
    user: str
    started_at_s: float
    duration_s: float
    share_percent: int
    slowdown: float


@dataclass(slots=True)
class _Gpu:
    """A GPU: until when each of its shares holds it, with its size, and until when one of them does."""

    parts: list[tuple[float, int]] = field(default_factory=list)
    held_until_s: float = 0.0

    def free_percent(self, now_s: float) -> int:
        self.parts = [(end_s, percent) for end_s, percent in self.parts if end_s > now_s]
        return WHOLE_PERCENT - sum(percent for _, percent in self.parts)


def freed_times_s(stays: Sequence[Stay], *, users_apart: bool) -> Sequence[float]:
    """Return the GPU seconds that the share of each of *stays* would have freed; below 0 where it costs more.

    Args:
        stays: In any order.
        users_apart: Whether a GPU has jobs of one user at a time, as without a wall around each job's memory.
    """
    freed_s = [0.0] * len(stays)
    gpus: dict[tuple[str, str], list[_Gpu]] = defaultdict(list)
    for place in sorted(range(len(stays)), key=lambda place: stays[place].started_at_s):
        stay = stays[place]
        now_s, end_s = stay.started_at_s, stay.started_at_s + stay.duration_s * stay.slowdown
        held = gpus[stay.gpu, stay.user if users_apart else ""]
        held[:] = [gpu for gpu in held if gpu.held_until_s > now_s]
        rooms = [(room, number) for number, gpu in enumerate(held) if (room := gpu.free_percent(now_s))]
        fitting = [(room, number) for room, number in rooms if room >= stay.share_percent]
        if not fitting:
            held.append(_Gpu(held_until_s=now_s))
        chosen = held[min(fitting)[1] if fitting else -1]

        # A GPU that another job holds anyway costs only the time beyond.
        freed_s[place] = stay.duration_s - max(0.0, end_s - chosen.held_until_s)
        chosen.parts.append((end_s, stay.share_percent))
        chosen.held_until_s = max(chosen.held_until_s, end_s)
    return freed_s
