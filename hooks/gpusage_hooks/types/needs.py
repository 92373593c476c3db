"""What a workload needs on one GPU, what a share of it costs, and what partners do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpusage_hooks.types.figures import Interval

NeedSource = Literal["model", "history"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeed:
    """What one replica of a workload needs on one GPU.

    Attributes:
        memory_bytes: What a run shows at its peak on a free GPU; libraries take a part of it because it is there.
        fits: Whether the upper end of `required_bytes` is no more than the GPU has; for a share, whether
            `share_memory_bytes` is no more than its part.
        parameter_count: Of the model, by which two jobs are known to train or serve the same one; ``None`` if unknown.
        share_percent: The part of the GPU that the figures are for; activities are of the share's own SMs.
        slowdown: The step time against that on the whole GPU, at least 1: an interval of the ratio itself. For a slice
            (MIG), against the GPU that it is cut from.
        required_memory_bytes: Without which a run fails, CUDA context included; ``None`` where nothing separates it
            from `memory_bytes`.
        share_high_bytes: The second upper end of the required memory, above which 1 of 1,000 jobs lies at most.
        source: ``history`` where the job names no model and its earlier runs show it: memory and utilization alone. Its
            step time and throughput are 1 then, and its activities anything up to its utilization.
    """

    gpu: str
    step_time_s: Interval
    memory_bytes: Interval
    gpu_utilization: Interval
    sm_activity: Interval
    dram_activity: Interval
    throughput_samples_per_s: Interval
    fits: bool
    familiar: bool = True
    notes: tuple[str, ...] = ()
    parameter_count: int | None = None
    share_percent: int = 100
    slowdown: Interval = Interval(value=1.0, low=1.0, high=1.0)
    required_memory_bytes: Interval | None = None
    share_high_bytes: float | None = None
    source: NeedSource = "model"

    @property
    def required_bytes(self) -> Interval:
        """Return the memory without which a run fails, as far as it is known apart from what a run takes."""
        return self.required_memory_bytes or self.memory_bytes

    @property
    def share_memory_bytes(self) -> float:
        """Return the memory that a share must have: the second upper end, or the first where no second one is known."""
        return self.required_bytes.high if self.share_high_bytes is None else self.share_high_bytes

    @property
    def certain_memory_bytes(self) -> float:
        """Return the memory that is enough even if the job takes as much as it likely would of a free GPU."""
        return max(self.memory_bytes.high, self.share_memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure that is known better than it can be predicted.

    Attributes:
        interval: The figure, and the ends between which 90 % of the truths should lie; both ends are the figure itself
            where it was measured.
        source: Who says so, for people: ``what you said``, ``12 earlier runs``.
    """

    interval: Interval
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFigures:
    """What is known of a workload alone on one whole GPU; ``None`` is left to prediction.

    Attributes:
        step_time_s: Seconds of one step, above 0.
        gpu_utilization: NVML's: the share of time with any kernel running, above 0 and at most 1.
        memory_bytes: Peak bytes of device memory, context included.
    """

    step_time_s: Figure | None = None
    gpu_utilization: Figure | None = None
    memory_bytes: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a part of a GPU costs a job that is alone on it.

    Attributes:
        gpu: The GPU, or the slice of one.
        share_percent: The MPS share of it.
        slowdown: As in `GpuNeed`.
        contended_slowdown: The same if partners leave it no more than its part of the memory's bandwidth; ``None``
            where that is no more.
    """

    gpu: str
    share_percent: int
    slowdown: Interval
    contended_slowdown: Interval | None = None

    @property
    def slowdown_under_contention(self) -> Interval:
        """Return what partners leave it at most, before what they cost in addition."""
        return self.contended_slowdown or self.slowdown


@dataclass(frozen=True, slots=True, kw_only=True)
class Colocation:
    """What jobs on one GPU do to each other under MPS; throughputs are relative to running alone.

    Attributes:
        memory_cap_bytes: The part of the GPU's memory that each may use.
        fits: Whether what each needs is within its part.
        recommended: Whether sharing is likely to gain.
    """

    gpu: str
    normalised_throughput: tuple[Interval, ...]
    mps_thread_percent: tuple[int, ...]
    memory_cap_bytes: tuple[int, ...]
    throughput_sum: Interval
    fits: bool
    recommended: bool
