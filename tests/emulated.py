"""Emulated GPUs on which two jobs are half as fast as one."""

from __future__ import annotations

from collections.abc import Sequence

from gpusage_hooks.units import MIB
from gpusage_planning.replay.virtual_gpus import VirtualGpus
from gpusage_planning.simulator.contract import Colocation, Tenant


class Halves:
    """The second GPU type is twice as fast; jobs of kind 1 need 6 of a GPU's 10 MiB, the others 1."""

    def speed(self, _: int, gpu_type: int, /) -> float:
        """Return 1 or 2."""
        return 1.0 + gpu_type

    def memory_bytes(self, kind: int, _: int, /) -> float:
        """Return what the kind needs."""
        return MIB * (6.0 if kind else 1.0)

    def colocation_of(self, tenants: Sequence[Tenant], _: int, /) -> Colocation:
        """Return equal parts."""
        return Colocation(tuple(1 / len(tenants) for _ in tenants), 0.5)


def emulated(*work_s: float, kinds: Sequence[int] | None = None) -> VirtualGpus:
    """Return GPUs of two types, and jobs with this much work."""
    return VirtualGpus(Halves(), kinds or [0] * len(work_s), work_s, [10.0 * MIB, 10.0 * MIB])
