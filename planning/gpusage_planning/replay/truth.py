"""What happens to emulated jobs on the GPUs of a site: their speeds, their memory, and what partners cost them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpusage_hooks.types import ModelGraph, Workload
from gpusage_planning.simulator.contract import Colocation, Tenant
from gpusage_planning.simulator.jobs import FloatArray, Kind

MEASURED = "rtx_3090"
SITE_TYPES = ("h100", MEASURED, "v100_32gb")
"""A newer GPU, the measured one and an older one, in the order in which Slurm fills nodes: by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """A kind of jobs as gpusage sees it.

    Attributes:
        key: Of the model's card in the zoo.
        run: How it is trained, with the utilization that an earlier run alone showed.
    """

    key: str
    graph: ModelGraph
    run: Workload


class MeasuredPairs(Protocol):
    """The throughput of jobs beside each other on the GPU type that was measured."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of jobs."""
        ...

    def colocation_of(self, tenants: Sequence[Tenant], gpu_type: int, /) -> Colocation:
        """Return the speeds of *tenants* on one GPU."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayTruth:
    """Speeds and memory of the kinds of jobs on the types of a site.

    Attributes:
        pairs: What happens on one GPU.
        runs: Of each kind.
        speeds: A row per kind, a column per type: work in a second, alone; 1 on the measured type.
        memory: What each kind needs, in bytes.
    """

    pairs: MeasuredPairs
    runs: tuple[KnownRun, ...]
    speeds: FloatArray
    memory: FloatArray

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of jobs."""
        return self.pairs.kinds

    def speed(self, kind: int, gpu_type: int, /) -> float:
        """Return the work per second alone on the whole GPU."""
        return float(self.speeds[kind, gpu_type])

    def memory_bytes(self, kind: int, _: int, /) -> float:
        """Return the memory that the job really needs."""
        return float(self.memory[kind])

    def colocation_of(self, tenants: Sequence[Tenant], gpu_type: int, /) -> Colocation:
        """Return what comes of *tenants*: the pairs. No table shows what a limit on threads does."""
        return self.pairs.colocation_of(tenants, gpu_type)
