"""The simulator's values: the jobs of a trace in columns, and what the engine asks of a policy, an order and the truth.

Kinds and GPU types are given by their numbers. Invariants:

1. Jobs are in the order of their submission; a job's number is its place in it.
2. Jobs of one kind are predicted, decided and slowed alike: whatever depends on the kind alone is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpusage_hooks.types import Workload
from gpusage_hooks.units import WHOLE_PERCENT

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
UNSAID = Workload()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Jobs that are alike.

    Attributes:
        name: For people.
        model: What the advisor reads, or the key of a card of the zoo; ``None`` where the trace has no model.
        workload: How the model is run.
        gpu_type: The site's name of the GPU type that the jobs insist on.
        share_percent: The part of one GPU that the jobs ask for themselves; 100 where they ask for whole ones.
    """

    name: str
    model: str | None = None
    workload: Workload = UNSAID
    gpu_type: str | None = None
    share_percent: int = WHOLE_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Jobs:
    """Jobs in the order of their submission; each column has one entry per job.

    Attributes:
        ids: In the manager's own form.
        submit_s: Seconds since any one moment.
        work_s: How long the job runs alone on whole GPUs on which its kind has speed 1.
        limit_s: Its time limit, by which backfill plans; nothing ends a job at it.
        gpu_count: GPUs that it asks for, at least 1; 1 where it asks for a part of one.
        kind: Index into *kinds*.
        user: Index into *users*.
    """

    ids: Sequence[str]
    submit_s: FloatArray
    work_s: FloatArray
    limit_s: FloatArray
    gpu_count: IntArray
    kind: IntArray
    user: IntArray
    kinds: tuple[Kind, ...]
    users: tuple[str, ...]

    def arrivals(self) -> Iterator[tuple[float, list[int]]]:
        """Yield each time at which jobs come, with these jobs."""
        times = self.submit_s.tolist()
        for now_s, group in groupby(range(len(times)), key=times.__getitem__):
            yield now_s, [*group]

    def __len__(self) -> int:
        return len(self.submit_s)


Stage = Literal["first", "profiled", "rescued", "released"]
"""Of a job: new, after its profiling run, after it ran out of memory, or after it waited in vain for a share."""
Backfill = Literal["none", "reserve", "any"]
"""Whether a younger job may start before an older one that waits: never; where it does not delay the oldest; always."""


class JobRequest(NamedTuple):
    """A job that waits, as a policy sees it.

    Attributes:
        above_bytes: Whole GPUs of this memory were too small for it.
        first: The GPU type that the policy has it try first when it comes; -1 for the order of its demand.
        user: Whose it is, where that counts for who may stand beside it; else -1.
        choice: What the policy decided when it came, by a number of its own; -1 where it decides by kind alone.
    """

    kind: int
    gpu_count: int = 1
    stage: Stage = "first"
    above_bytes: float = 0.0
    first: int = -1
    user: int = -1
    choice: int = -1


class Arrival(NamedTuple):
    """What a policy knows when a job comes.

    Attributes:
        user: Whose job it is.
        free_counts: GPUs of each type that are empty and held for nobody.
        open_sets: The jobs on each GPU of a type on which others may have room, equal sets once.
    """

    user: int
    free_counts: Sequence[int]
    open_sets: Callable[[int], Sequence[Sequence[JobRequest]]]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Decides where jobs go. Every answer depends on the arguments alone, so the engine asks once.

    Attributes:
        backfill: Who may overtake.
        remembers: Whether a kind of which one job ran out of memory beside others is no longer put beside others.
        most_per_gpu: How many jobs may stand on one GPU.
    """

    name: str
    backfill: Backfill = "reserve"
    remembers: bool = False
    most_per_gpu: int = 1

    def demand(self, ask: JobRequest, /) -> Demand:
        """Return the demand of a job that asks for whole GPUs."""
        raise NotImplementedError

    def rank(self, ask: JobRequest, gpu_type: int, /) -> float:
        """Return the place in the queue for GPUs of *gpu_type*, the least first; the older job among equals."""
        return 0.0

    def cost(self, gpu_type: int, tenants: Sequence[JobRequest], newcomer: JobRequest, /) -> float | None:
        """Return what it costs to put *newcomer* beside *tenants* (at least none), ``None`` if it must not be."""
        return 0.0

    def arriving(self, ask: JobRequest, seen: Arrival, /) -> JobRequest:
        """Return *ask* as it is to wait."""
        return ask

    def released(self, ask: JobRequest, /) -> JobRequest | None:
        """Return as what a job waits on that has no room, while its user allows free GPUs; ``None``: as it is."""
        return None


class QueuedJob(NamedTuple):
    """A job that waits or runs, as an order sees it.

    Attributes:
        number: Its place in the order of submission.
        role: Equal for jobs of which policy and truth say the same.
        gpus: The GPUs that it holds while it runs; a share counts as its part of one.
        types: GPU types that may run it, those to try first at the front.
        predicted_s: How long it is predicted to run alone on whole GPUs of the type that has speed 1 for it.
    """

    number: int
    role: int
    user: int
    gpus: float
    types: tuple[int, ...]
    submit_s: float
    predicted_s: float


class Truth(Protocol):
    """What really happens; no policy sees it."""

    def speed(self, kind: int, gpu_type: int, /) -> float:
        """Return the work that is done in a second, alone on whole GPUs of the type."""

    def memory_bytes(self, kind: int, gpu_type: int, /) -> float:
        """Return the memory that the job really takes."""

    def colocation_of(self, tenants: Sequence[Tenant], gpu_type: int, /) -> Colocation:
        """Return what comes of *tenants*, at least one."""


class UnslowedTruth:
    """A truth in which every job runs at speed 1, wherever it is and beside whom, and needs no memory."""

    def speed(self, _: int, __: int, /) -> float:
        """Return the same for all."""
        return 1.0

    def memory_bytes(self, _: int, __: int, /) -> float:
        """Return nothing."""
        return 0.0

    def colocation_of(self, tenants: Sequence[Tenant], _: int, /) -> Colocation:
        """Return a GPU at work."""
        return Colocation((1.0,) * len(tenants), 1.0)
