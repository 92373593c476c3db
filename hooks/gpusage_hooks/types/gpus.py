"""A GPU model of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Vendor = Literal["nvidia", "amd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU model of the catalogue; rates are the vendor's dense peaks.

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
        network_bytes_per_s: What the network between hosts carries for each GPU, one way; ``None`` is what hosts with
            such GPUs commonly have.
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

    @property
    def board(self) -> str:
        """Return the name of the whole GPU: its own, or that of the GPU that it is cut from."""
        return self.parent_gpu or self.name
