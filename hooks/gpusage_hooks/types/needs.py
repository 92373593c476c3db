"""A GPU model of the catalogue, the need of a workload on it, the price of its shares, and co-location."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpusage_hooks.types.workloads import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A predicted figure: the point, and the ends between which 90 % of the truths should lie."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInterval(Interval):
    """Bytes of device memory that a run needs, with a second upper end.

    Attributes:
        share_high: What a share must have: 1 of 1,000 jobs of unseen families needs more. At least the upper end, which
            says whether a job fits on a whole GPU.
    """

    share_high: float


Vendor = Literal["nvidia", "amd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU model of the catalogue; rates are the vendor's dense peaks.

    From `watts_per_teraflop` on, a row may leave out what it does not know. The catalogue then adds what it knows of
    the generation and of the compute capability; predictions assume what is usual for the rest, and say so.

    Attributes:
        name: Lower-case, model-form-memory where it matters, for example ``v100-sxm2-16gb``.
        aliases: Other names: short form, workload managers' type names, NVML names (lower-case).
        generation: The vendor's name of the architecture, for example ``volta``.
        compute_capability: Major and minor, for example ``(7, 0)``; of AMD's the target, ``(9, 4)`` for gfx942.
        peak_flop_per_s: By precision; a precision that the chip does not speed up has no entry.
        launch_year: When it came out: orders generations.
        source: Where the row is from.
        parent_gpu: The GPU that it is a slice of (MIG); ``None`` for a whole one.
        vendor: Only Nvidia's GPUs have MPS.
        network_bytes_per_s: What the site's network between hosts carries for each GPU, one way.
        watts_per_teraflop: The power that the chip needs for each TFLOP/s of its FP32 peak to hold it.
        context_bytes: Device memory of a CUDA context with the kernels of PyTorch and cuBLAS.
        pci_express: The generation of the bus through which boards without links reach each other.
        unsupported_engines: Inference engines that run on other GPUs of this vendor, but not on this one.
        is_measured: Whether the predictors were fitted on GPUs of this generation.
        link_bytes_per_s: Of all links to other boards (NVLink, Infinity Fabric), one way; ``None`` without links.
        linked_gpu_count: How many boards these links join; ``None`` is all of a host.
        usual_network_bytes_per_s: As *network_bytes_per_s*, where neither job nor site says it.
        measured_as: The board whose measurements hold for this one, as the learned values name it; ``None`` is `board`.
        is_measured_in_half: Whether training in half precision was measured on this board (timm's runs).
        host_factor: How many times as long as usual the site's hosts with such a GPU take to launch; 1: unknown.
    """

    name: str
    aliases: tuple[str, ...]
    generation: str
    compute_capability: tuple[int, int]
    sm_count: int
    clock_hz: float
    peak_flop_per_s: Mapping[str, float]
    memory_bytes: int
    bandwidth_bytes_per_s: float
    l2_bytes: int
    power_limit_w: float
    launch_year: int
    source: str
    parent_gpu: str | None = None
    vendor: Vendor = "nvidia"
    network_bytes_per_s: float | None = None
    watts_per_teraflop: float | None = None
    context_bytes: Interval | None = None
    pci_express: int | None = None
    unsupported_engines: tuple[Engine, ...] = ()
    is_measured: bool = False
    link_bytes_per_s: float | None = None
    linked_gpu_count: int | None = None
    usual_network_bytes_per_s: float | None = None
    measured_as: str | None = None
    is_measured_in_half: bool = False
    host_factor: float = 1.0

    @property
    def board(self) -> str:
        """Return the name of the whole GPU: its own, or that of the GPU that it is cut from."""
        return self.parent_gpu or self.name

    @property
    def calibration(self) -> str:
        """Return the name under which what was learned of this board alone is kept."""
        return self.measured_as or self.board


NeedSource = Literal["model", "step", "history"]


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
        memory_share: The part of the memory that it sees that an engine takes and must do with; ``None`` of other jobs.
        source: ``step`` where the step time follows from a known one on another GPU; ``history`` where the job names no
            model and its earlier runs show it: memory and utilization alone. Its step time and throughput are 1 then,
            and its activities anything up to its utilization.
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
    memory_share: float | None = None
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
        memory_share: The part of the memory that it sees that it takes, 0 to 1, where it took most of that.
    """

    step_time_s: Figure | None = None
    gpu_utilization: Figure | None = None
    memory_bytes: Figure | None = None
    memory_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a part of a GPU costs a job that is alone on it.

    Attributes:
        gpu: The GPU, or the slice of one.
        share_percent: The MPS share of it.
        slowdown: As in `GpuNeed`.
        contended_slowdown: The same if partners leave it no more than its part of the memory's bandwidth; ``None``
            where that is no more.
        partner_powers: By which powers of the number of jobs on the GPU its own time grows, beside average partners and
            bad ones; ``None`` for the dearest that were fitted.
    """

    gpu: str
    share_percent: int
    slowdown: Interval
    contended_slowdown: Interval | None = None
    partner_powers: tuple[float, float] | None = None

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
