"""The policies that are compared, as the engine asks them; the rules themselves are those of `gpusage.policies`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpusage_hooks.types import SharingRules
from gpusage_planning.simulator.contract import Backfill, Demand, JobRequest
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.foresight import Foresight, colocated_throughputs
from gpusage_planning.simulator.packing import MOST_JOBS, Room, added, fits

PROFILING_S = 60.0
"""A minute alone, as in Yeung et al."""
ACCEPTED = SharingRules().maximum_slowdown
TypesOf = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Whole GPUs: no two jobs on one."""

    fleet: Fleet
    types_of: TypesOf = field(default_factory=dict)
    name: str = "slots"
    backfill: Backfill = "reserve"
    remembers: bool = False
    most_per_gpu: int = 1

    def demand(self, ask: JobRequest) -> Demand:
        """Return whole GPUs."""
        return whole_gpu_demand(self.fleet, ask, types(self.fleet, self.types_of, ask.kind))

    def rank(self, _: JobRequest, __: int, /) -> float:
        """Return the same for all: the older job is first."""
        return 0.0

    def cost(self, _: int, __: Sequence[JobRequest], ___: JobRequest, /) -> float | None:
        """Return nothing: any empty GPU will do."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Yeung's: first fit decreasing on utilization and memory; a job that runs out of memory gets a whole GPU.

    Attributes:
        foresight: Of kinds that it does not know, jobs get whole GPUs.
        types_of: GPU types that a kind insists on; all for the others.
        profiles: Whether each job is profiled first, Yeung's reactive way; *foresight* is what that shows.
        profiling_types: GPU types on which jobs are profiled; the others are for work.
    """

    fleet: Fleet
    foresight: Foresight
    types_of: TypesOf = field(default_factory=dict)
    name: str = "packing"
    backfill: Backfill = "reserve"
    remembers: bool = False
    most_per_gpu: int = MOST_JOBS
    profiles: bool = False
    profiling_types: tuple[int, ...] = ()

    def demand(self, ask: JobRequest) -> Demand:
        """Return a GPU that others may use as well, a profiling run, or whole GPUs."""
        where = tuple(one for one in types(self.fleet, self.types_of, ask.kind) if one not in self.profiling_types)
        is_known = all((ask.kind, one) in self.foresight.loads for one in where)
        if ask.gpu_count > 1 or ask.stage == "rescued" or not is_known:
            return whole_gpu_demand(self.fleet, ask, where)
        if self.profiles and ask.stage == "first":
            return Demand(types=self.profiling_types or where, profiling_s=PROFILING_S)
        return Demand(types=where, alone=False, accepted_slowdown=ACCEPTED)

    def rank(self, ask: JobRequest, gpu_type: int) -> float:
        """Return the busiest first."""
        load = self.foresight.loads.get((ask.kind, gpu_type))
        return -1.0 if load is None else -load.utilization

    def cost(self, gpu_type: int, tenants: Sequence[JobRequest], newcomer: JobRequest) -> float | None:
        """Return the same for every GPU that has room: the first one is taken."""
        if not tenants:
            return 0.0
        loads = [self.foresight.loads[one.kind, gpu_type] for one in (*tenants, newcomer)]
        return 0.0 if fits(loads, Room(memory_bytes=self.fleet.types[gpu_type].memory_bytes)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """Ours: a job joins the set to whose throughput it adds most, where nobody becomes slower than promised."""

    fleet: Fleet
    foresight: Foresight
    types_of: TypesOf = field(default_factory=dict)
    name: str = "sets"
    backfill: Backfill = "reserve"
    remembers: bool = False
    most_per_gpu: int = MOST_JOBS

    def demand(self, ask: JobRequest) -> Demand:
        """Return a GPU that others may use as well, or whole GPUs."""
        where = types(self.fleet, self.types_of, ask.kind)
        is_known = all((ask.kind, one) in self.foresight.loads for one in where)
        if ask.gpu_count > 1 or ask.stage == "rescued" or not is_known:
            return whole_gpu_demand(self.fleet, ask, where)
        return Demand(types=where, alone=False, accepted_slowdown=ACCEPTED)

    def rank(self, _: JobRequest, __: int, /) -> float:
        """Return the same for all: the older job is first."""
        return 0.0

    def cost(self, gpu_type: int, tenants: Sequence[JobRequest], newcomer: JobRequest) -> float | None:
        """Return less, the more the job adds; an empty GPU comes first, on which it adds a whole one."""
        kinds = [one.kind for one in tenants]
        loads = [self.foresight.loads[one, gpu_type] for one in (*kinds, newcomer.kind)] if tenants else []
        if sum(load.memory_bytes for load in loads) > self.fleet.types[gpu_type].memory_bytes:
            return None
        matrix = self.foresight.pair_throughputs[gpu_type]
        gain = (
            added(
                colocated_throughputs(matrix, kinds), colocated_throughputs(matrix, [*kinds, newcomer.kind]), ACCEPTED
            )
            if tenants
            else 1.0
        )
        return None if gain is None else -gain


def types(fleet: Fleet, types_of: TypesOf, kind: int) -> tuple[int, ...]:
    """Return the GPU types on which jobs of *kind* may run: those that it insists on, else all."""
    return types_of.get(kind) or tuple(range(len(fleet.types)))


def whole_gpu_demand(fleet: Fleet, ask: JobRequest, where: Sequence[int]) -> Demand:
    """Return whole GPUs of the types of *where*, in their order, that have enough memory and are enough."""
    return Demand(
        types=tuple(
            one
            for one in where
            if fleet.types[one].memory_bytes > ask.above_bytes and fleet.types[one].gpu_count >= ask.gpu_count
        )
    )
