"""A site's runs of jobs that name no model: the user, name, script and request predict a job's figures.

`gpusage train --history` fits a `History` and writes it to a file: JSON that is checked against its types; no pickle.

Invariants:

1. The nearest level that has enough runs counts, and no other.
2. Runs of other users count only where three of them have the same script, and then the highest of them: two users can
   raise the predictions of another's jobs, never lower them.
3. A figure of another GPU is scaled by how much faster that GPU is; a faster GPU is not taken to be less busy.
4. A user's margins come from that user's runs and from constants: nobody makes them smaller for somebody else. None is
   below 1 or above `LARGEST_MARGIN`; up from the highest memory none is below `LEAST_MEMORY_MARGIN`, because a run that
   needs more fails, and one that is busier only takes longer.
5. The file is replaced as a whole, and holds digests and figures, no names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from gpusage.experience.identity import LEAST_USERS, LEVELS, NEAR_LEVELS, OTHERS, Level, similarity_keys, user_key
from gpusage_hooks.errors import DeviceError, RequestError
from gpusage_hooks.types import Figure, Gpu, Interval, JobIdentity, ObservedFigures

LARGEST_BYTES = 256 * 2**20
"""Of the file."""
LEAST_RUNS: Mapping[Level, int] = {level: 1 if level in NEAR_LEVELS else 3 for level in LEVELS} | {OTHERS: LEAST_USERS}
PROPORTIONAL_MEMORY = 0.7
"""A job that holds so much of a GPU's memory is assumed to hold as much of any: some libraries take what there is."""
LARGEST_MARGIN, LEAST_MEMORY_MARGIN = 4.0, 1.1
DEFAULT_MARGINS = ((8, 1.1), (4, 1.15), (2, 1.3), (1, 1.5))
"""The margin of a user of whom too little is known: from so many runs on."""
OWN_MARGIN_RUNS = 4
"""From so many runs on a user's own margin counts alone: it is of windows of every length."""
FAR_FACTOR = 1.3
"""How much wider the default margin is where the runs have little in common with the job."""

Quantity = Literal["utilization", "memory"]
QUANTITIES: tuple[Quantity, ...] = ("utilization", "memory")
Nearness = Literal["near", "far"]
GpuLookup = Callable[[str], Gpu]
"""Returns a GPU of the catalogue by its name; raises `DeviceError` for one that the catalogue does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One quantity in the newest runs of one key on one GPU, or in one value per user; each value is above 0."""

    count: int
    low: float
    middle: float
    high: float


Windows = Mapping[Quantity, Mapping[str, Window]]
"""By quantity and GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """How far the next run may go beyond a window: a factor up from its highest run, and one down from its lowest."""

    up: float
    down: float


OTHERS_MARGIN = Margin(up=2.0, down=2.0)
"""Of other users' runs, however many there are: else somebody could make it smaller by having the same script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEstimate:
    """The prediction of one quantity of a job on one GPU.

    Attributes:
        interval: The next run should lie within it.
        window: The runs that it rests on, as they were observed.
        level: The likeness of these runs and the job.
    """

    interval: Interval
    window: Window
    level: Level


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The runs of a site, by similarity keys.

    Attributes:
        runs: How many it was fitted on.
        users: How many users these runs had.
        fitted_at_s: When, seconds since 1970.
        windows: By similarity key, but for those of `OTHERS`.
        shared: By similarity key of `OTHERS`, by the key of each user.
        margins: By user, quantity and nearness; users with too few runs are left out.
    """

    runs: int = 0
    users: int = 0
    fitted_at_s: float = 0.0
    windows: Mapping[str, Windows] = field(default_factory=dict)
    shared: Mapping[str, Mapping[str, Windows]] = field(default_factory=dict)
    margins: Mapping[str, Mapping[Quantity, Mapping[Nearness, Margin]]] = field(default_factory=dict)

    def known_figures(self, identity: JobIdentity, gpu: Gpu, find_gpu: GpuLookup) -> ObservedFigures:
        """Return the figures of the job of *identity* alone on the whole of *gpu*; none for a slice."""
        if gpu.parent_gpu is not None:
            return ObservedFigures()
        utilization, memory = (self.estimate(identity, quantity, gpu, find_gpu) for quantity in QUANTITIES)
        return ObservedFigures(gpu_utilization=_figure(utilization), memory_bytes=_figure(memory))

    def estimate(
        self, identity: JobIdentity, quantity: Quantity, gpu: Gpu, find_gpu: GpuLookup
    ) -> HistoryEstimate | None:
        """Return the estimate of one *quantity*; ``None`` without enough runs."""
        level, window = next(self.matching_windows(identity, quantity, gpu, find_gpu), (None, None))
        if level is None or window is None:
            return None

        # Nobody makes another's margin smaller.
        margin = OTHERS_MARGIN if level == OTHERS else self._margin(user_key(identity.user), quantity, level, window)
        most = 1.0 if quantity == "utilization" else float("inf")
        ends = (window.low / margin.down, window.middle, window.high * margin.up)
        low, value, high = (min(end, most) for end in ends)
        return HistoryEstimate(interval=Interval(value=value, low=low, high=high), window=window, level=level)

    def matching_windows(
        self, identity: JobIdentity, quantity: Quantity, gpu: Gpu, find_gpu: GpuLookup
    ) -> Iterator[tuple[Level, Window]]:
        """Yield the runs that are like the job, as they would have been on *gpu*, the nearest level first."""
        own = user_key(identity.user)
        for level, key in similarity_keys(identity).items():
            if level == OTHERS:
                # A user's own runs of this script count one level nearer.
                users = [windows for user, windows in self.shared.get(key, {}).items() if user != own]
                by_user = [window_on(gpu, windows.get(quantity, {}), quantity, find_gpu) for windows in users]
                each = [window for window in by_user if window is not None]
                window = None
                if each:
                    # Each user counts once, and the highest end is that of all.
                    middle = median(one.middle for one in each)
                    low, high = min(one.low for one in each), max(one.high for one in each)
                    window = Window(count=len(each), low=low, middle=middle, high=high)
            else:
                window = window_on(gpu, self.windows.get(key, {}).get(quantity, {}), quantity, find_gpu)

            if window is not None and window.count >= LEAST_RUNS[level]:
                yield level, window

    def _margin(self, user: str, quantity: Quantity, level: Level, window: Window) -> Margin:
        """Return the margin of *user* around *window*, the default one where too little is known."""
        near = nearness(level)
        default = next(factor for count, factor in DEFAULT_MARGINS if window.count >= count)
        default *= FAR_FACTOR if near == "far" else 1.0

        own = self.margins.get(user, {}).get(quantity, {}).get(near)
        if own is None:
            own = Margin(up=default, down=default)
        elif window.count < OWN_MARGIN_RUNS:
            # A margin that long windows taught is too small for a short one.
            own = Margin(up=max(own.up, default), down=max(own.down, default))

        # A run that needs more memory fails; one that is busier only takes longer.
        return Margin(up=max(own.up, LEAST_MEMORY_MARGIN), down=own.down) if quantity == "memory" else own


def nearness(level: Level) -> Nearness:
    """Return whether runs of *level* have much in common with the job; margins differ by that."""
    return "near" if level in NEAR_LEVELS else "far"


def window_on(gpu: Gpu, windows: Mapping[str, Window], quantity: Quantity, find_gpu: GpuLookup) -> Window | None:
    """Return the runs of *windows*, by GPU, as they would be on *gpu*; ``None`` where there are none."""
    if gpu.name in windows:
        return windows[gpu.name]

    scaled = []
    for name, window in windows.items():
        try:
            source = find_gpu(name)
        except DeviceError:  # the catalogue does not have it any more
            continue
        factor = _scale(window, quantity, source, gpu)
        ends = {"low": window.low * factor, "middle": window.middle * factor, "high": window.high * factor}
        scaled.append(Window(count=window.count, **ends))

    # Of several other GPUs, the one with most runs; of equal ones the higher figures, which are the safer ones.
    return max(scaled, key=lambda window: (window.count, window.high), default=None)


def _scale(window: Window, quantity: Quantity, source: Gpu, gpu: Gpu) -> float:
    """Return how much more of *gpu* than of *source* the runs of *window* would use, at least 1."""
    if quantity == "memory":
        # Some libraries take a part of whatever memory there is; other jobs hold the same bytes on any GPU.
        is_proportional = window.high > PROPORTIONAL_MEMORY * source.memory_bytes
        return max(gpu.memory_bytes / source.memory_bytes, 1.0) if is_proportional else 1.0
    # A job may be bound by either; a faster GPU is not taken to be less busy, because the host may decide.
    fp32_ratio = source.peak_flop_per_s["fp32"] / gpu.peak_flop_per_s["fp32"]
    return max(source.bandwidth_bytes_per_s / gpu.bandwidth_bytes_per_s, fp32_ratio, 1.0)


def _figure(estimate: HistoryEstimate | None) -> Figure | None:
    if estimate is None:
        return None

    count, level = estimate.window.count, estimate.level
    if level == OTHERS:
        source = f"the same script of {count} other users"
    else:
        runs = "1 run" if count == 1 else f"{count} runs"
        source = f"{runs} of yours" + ("" if level == "user" else f" with this {level}")
    return Figure(interval=estimate.interval, source=source)


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal["gpusage.history/1"]
    history: History


def read_history(path: Path) -> History | None:
    """Return the history at *path*; ``None`` where there is no file.

    Raises:
        RequestError: It is no history, or of another version, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            # A longer file is cut off, and then it is no JSON.
            content = file.read(LARGEST_BYTES + 1)
        document = msgspec.json.decode(content, type=_Document)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        message = f"History {str(path)!r} must be what gpusage train --history writes; got: {error}. Train it again."
        raise RequestError(message) from error

    return document.history
