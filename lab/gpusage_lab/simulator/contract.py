"""What the engine asks of a policy and of the truth. Kinds and GPU types are given by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

Stage = Literal["first", "profiled", "rescued"]
"""Of a job: new, after its profiling run, or after it ran out of memory."""
Backfill = Literal["none", "reserve", "any"]
"""Whether a younger job may start before an older one that waits: never; where it does not delay the oldest; always."""


class JobRequest(NamedTuple):
    """A job that waits, as a policy sees it.

    Attributes:
        above_bytes: Whole GPUs of this memory were too small for it.
        first: The GPU type that an `Online` policy has it try first; -1 for the order of its demand.
    """

    kind: int
    gpu_count: int = 1
    stage: Stage = "first"
    above_bytes: float = 0.0
    first: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the job asks for in the end.

    Attributes:
        types: GPU types that may run it, those to try first at the front.
        share_percent: The part of each GPU that it holds.
        thread_percent: The threads that it may use; 100 where nothing limits it.
        alone: Whether nobody may stand beside it.
        memory_cap_bytes: Device memory above which it is ended; ``None`` without a cap. With a share, its part of the
            GPU that it got counts instead.
        profiling_s: Above 0 where it is only watched for so long, and then waits again.
        accepted_slowdown: How many times as long it may take as alone on the whole GPU; ``None`` without a promise.
    """

    types: tuple[int, ...]
    share_percent: int = 100
    thread_percent: int = 100
    alone: bool = True
    memory_cap_bytes: float | None = None
    profiling_s: float = 0.0
    accepted_slowdown: float | None = None


class Tenant(NamedTuple):
    """A job on a GPU: its kind, and the percentage of the threads that it may use (100 where nothing limits it)."""

    kind: int
    thread_percent: int = 100


class Colocation(NamedTuple):
    """What comes of tenants: each one's speed against alone on the whole GPU, and NVML's busy share of the GPU."""

    speeds: tuple[float, ...]
    utilization: float


class Policy(Protocol):
    """Decides where jobs go. Every answer depends on the arguments alone, so the engine asks once."""

    @property
    def name(self) -> str:
        """Return its name."""

    @property
    def backfill(self) -> Backfill:
        """Return who may overtake."""

    @property
    def most_per_gpu(self) -> int:
        """Return how many jobs may stand on one GPU."""

    @property
    def remembers(self) -> bool:
        """Return whether a kind of which one job ran out of memory beside others is no longer put beside others."""

    def demand(self, ask: JobRequest, /) -> Demand:
        """Return what becomes of a job that asks for whole GPUs."""

    def rank(self, ask: JobRequest, gpu_type: int, /) -> float:
        """Return the place in the queue for GPUs of *gpu_type*, the least first; the older job among equals."""

    def cost(self, gpu_type: int, tenants: Sequence[JobRequest], newcomer: JobRequest, /) -> float | None:
        """Return how dear it is to put *newcomer* beside *tenants* (at least none), ``None`` if it must not be."""


@runtime_checkable
class Online(Protocol):
    """What a policy has, beside, that looks at the cluster when a job comes."""

    def arriving(self, ask: JobRequest, free_counts: Sequence[int], /) -> JobRequest:
        """Return *ask* as it is to wait, given the GPUs of each type that are empty and held for nobody."""


class Truth(Protocol):
    """What really happens; no policy is told of it."""

    def speed(self, kind: int, gpu_type: int, /) -> float:
        """Return the work that is done in a second, alone on whole GPUs of the type."""

    def memory_bytes(self, kind: int, gpu_type: int, /) -> float:
        """Return the memory that the job really takes."""

    def colocation_of(self, tenants: Sequence[Tenant], gpu_type: int, /) -> Colocation:
        """Return what comes of *tenants*, at least one."""
