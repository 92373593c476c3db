"""What a site's history tells: the value that `gpusage train --history` writes, and how a job finds its part of it.

Invariants:

1. The nearest key that enough runs have counts, and no other.
2. Runs of others count only where two users have the same script, and then the highest of them: one user alone can
   make another's predictions higher, never lower.
3. What was seen on another GPU counts as much more as that one is faster; a faster GPU is not taken to be less busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gpusage.history.features import FAR, LEVELS, NEAR, OTHERS, Level, keys_of, user_key
from gpusage.history.margins import STRANGE, Margin, applied
from gpusage.history.windows import QUANTITIES, Quantity, Window, Windows, of_several
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Figure, Gpu, Interval, JobIdentity, Known

LEAST_RUNS: Mapping[Level, int] = dict.fromkeys(NEAR, 1) | dict.fromkeys(FAR, 3) | {OTHERS: 2}
PROPORTIONAL = 0.7
"""A job that holds so much of a GPU's memory is taken to hold as much of any: some libraries take what there is."""
Find = Callable[[str], Gpu]
Nearness = str
"""``near`` or ``far``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What history tells of one quantity of a job on one GPU.

    Attributes:
        interval: What the next run should lie within.
        window: The runs that it rests on, as they were seen.
        level: What they have in common with the job.
    """

    interval: Interval
    window: Window
    level: Level


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a site's runs showed.

    Attributes:
        runs: How many it was fitted on.
        users: Whose they were.
        fitted_at_s: When, seconds since 1970.
        windows: By key, but for those of `OTHERS`.
        shared: By key of `OTHERS`, by the key of each user.
        margins: By user, quantity and nearness; those who have too few runs are left out.
    """

    runs: int = 0
    users: int = 0
    fitted_at_s: float = 0.0
    windows: Mapping[str, Windows] = field(default_factory=dict)
    shared: Mapping[str, Mapping[str, Windows]] = field(default_factory=dict)
    margins: Mapping[str, Mapping[Quantity, Mapping[Nearness, Margin]]] = field(default_factory=dict)

    def known(self, identity: JobIdentity, gpu: Gpu, find: Find) -> Known:
        """Return what is known of the job of *identity* alone on the whole of *gpu*; nothing of a slice.

        Args:
            identity: What its submission tells.
            gpu: A row of the catalogue.
            find: Returns a row by its name.
        """
        if gpu.cut_from is not None:
            return Known()
        told = {quantity: self.tell(identity, quantity, gpu, find) for quantity in QUANTITIES}
        return Known(gpu_utilization=_figure(told["utilization"]), memory_bytes=_figure(told["memory"]))

    def tell(self, identity: JobIdentity, quantity: Quantity, gpu: Gpu, find: Find) -> Told | None:
        """Return what is known of one *quantity*; ``None`` where nothing is."""
        nearest = next(self.nearest(identity, quantity, gpu, find), None)
        if nearest is None:
            return None
        level, window = nearest
        if level == OTHERS:
            low, high = window.low / STRANGE.down, window.high * STRANGE.up
        else:
            own = self.margins.get(user_key(identity.user), {}).get(quantity, {}).get(nearness(level))
            low, high = applied(window, own, near=level in NEAR)
        most = 1.0 if quantity == "utilization" else high
        interval = Interval(value=min(window.middle, most), low=min(low, most), high=min(high, most))
        return Told(interval=interval, window=window, level=level)

    def nearest(
        self, identity: JobIdentity, quantity: Quantity, gpu: Gpu, find: Find
    ) -> Iterator[tuple[Level, Window]]:
        """Yield the runs that tell of *quantity* as they would have been on *gpu*, the nearest first."""
        keys = keys_of(identity)
        for level in (level for level in LEVELS if level in keys):
            if level == OTHERS:
                window = self._of_others(keys[level], user_key(identity.user), quantity, gpu, find)
            else:
                window = on_gpu(self.windows.get(keys[level], {}).get(quantity, {}), quantity, gpu, find)
            if window is not None and window.count >= LEAST_RUNS[level]:
                yield level, window

    def _of_others(self, key: str, user: str, quantity: Quantity, gpu: Gpu, find: Find) -> Window | None:
        users = self.shared.get(key, {})
        each = [
            on_gpu(windows.get(quantity, {}), quantity, gpu, find) for other, windows in users.items() if other != user
        ]
        known = [window for window in each if window is not None]
        return of_several(known) if known else None


def nearness(level: Level) -> Nearness:
    """Return what margins are kept by."""
    return "near" if level in NEAR else "far"


def on_gpu(windows: Mapping[str, Window], quantity: Quantity, gpu: Gpu, find: Find) -> Window | None:
    """Return the runs of *windows*, by GPU, as they would be on *gpu*; ``None`` where none tell."""
    if gpu.name in windows:
        return windows[gpu.name]
    moved = [
        _times(window, factor)
        for name, window in windows.items()
        if (factor := _factor(window, quantity, name, gpu, find)) is not None
    ]
    return max(moved, key=lambda window: (window.count, window.high)) if moved else None


def _factor(window: Window, quantity: Quantity, name: str, gpu: Gpu, find: Find) -> float | None:
    try:
        there = find(name)
    except DeviceError:  # the catalogue does not know it
        return None
    if quantity == "memory":
        takes_all = window.high > PROPORTIONAL * there.memory_bytes
        return max(gpu.memory_bytes / there.memory_bytes, 1.0) if takes_all else 1.0
    times_fp32 = there.peak_flop_per_s["fp32"] / gpu.peak_flop_per_s["fp32"]
    return max(there.bandwidth_bytes_per_s / gpu.bandwidth_bytes_per_s, times_fp32, 1.0)


def _times(window: Window, factor: float) -> Window:
    return Window(count=window.count, low=window.low * factor, middle=window.middle * factor, high=window.high * factor)


def _figure(told: Told | None) -> Figure | None:
    if told is None:
        return None
    runs = "1 run" if told.window.count == 1 else f"{told.window.count} runs"
    if told.level == OTHERS:
        source = f"the same script of {told.window.count} other users"
    else:
        source = f"{runs} of yours" + ("" if told.level == "user" else f" with this {told.level}")
    return Figure(interval=told.interval, source=source)
