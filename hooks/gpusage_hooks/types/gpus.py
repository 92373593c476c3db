"""A GPU model of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gpusage_hooks.types.figures import Interval
from gpusage_hooks.types.workloads import Engine

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

    @property
    def board(self) -> str:
        """Return the name of the whole GPU: its own, or that of the GPU that it is cut from."""
        return self.parent_gpu or self.name

    @property
    def calibration(self) -> str:
        """Return the name under which what was learned of this board alone is kept."""
        return self.measured_as or self.board
