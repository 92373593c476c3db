"""The policies that are compared, as the engine asks them; the rules themselves are those of `gpusage.policies`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusage.policies.packing import MOST_JOBS, Load, Room, added, fits
from gpusage_hooks.types import SharingRules
from gpusage_lab.simulator.contract import Ask, Backfill, Demand
from gpusage_lab.simulator.fleet import Fleet
from gpusage_lab.simulator.foresight import Foresight, together

PROFILING_S = 60.0
"""A minute alone, as in Yeung et al."""
ACCEPTED = SharingRules().maximum_slowdown


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Whole GPUs: no two jobs on one."""

    fleet: Fleet
    name: str = "slots"
    backfill: Backfill = "reserve"
    most_per_gpu: int = 1

    def demand(self, ask: Ask) -> Demand:
        """Return whole GPUs."""
        return whole(self.fleet, ask)

    def rank(self, _: Ask, __: int, /) -> float:
        """Return the same for all: the older job is first."""
        return 0.0

    def cost(self, _: int, __: Sequence[Ask], ___: Ask, /) -> float | None:
        """Return nothing: any empty GPU will do."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Yeung's: first fit decreasing on utilization and memory; a job that runs out of memory gets a whole GPU.

    Attributes:
        foresight: Of kinds that it does not know, jobs get whole GPUs.
        measured: What a profiling run shows; with it, each job is profiled first (Yeung's reactive way).
        profiling_types: GPU types on which jobs are profiled; the others are for work.
    """

    fleet: Fleet
    foresight: Foresight
    name: str = "packing"
    backfill: Backfill = "reserve"
    most_per_gpu: int = MOST_JOBS
    profiles: bool = False
    profiling_types: tuple[int, ...] = ()

    def demand(self, ask: Ask) -> Demand:
        """Return a GPU that others may use as well, a profiling run, or whole GPUs."""
        if self.profiles and ask.stage == "first" and ask.gpu_count == 1:
            everywhere = tuple(range(len(self.fleet.types)))
            return Demand(types=self.profiling_types or everywhere, profiling_s=PROFILING_S)
        known = all((ask.kind, gpu_type) in self.foresight.loads for gpu_type in self._working())
        if ask.gpu_count > 1 or ask.stage == "rescued" or not known:
            return whole(self.fleet, ask, self._working())
        return Demand(types=self._working(), alone=False, accepted_slowdown=ACCEPTED)

    def rank(self, ask: Ask, gpu_type: int) -> float:
        """Return the busiest first."""
        load = self.foresight.loads.get((ask.kind, gpu_type))
        return -1.0 if load is None else -load.utilization

    def cost(self, gpu_type: int, tenants: Sequence[Ask], newcomer: Ask) -> float | None:
        """Return the same for every GPU that has room: the first one is taken."""
        if not tenants:
            return 0.0
        loads = [self.foresight.loads[one.kind, gpu_type] for one in (*tenants, newcomer)]
        return 0.0 if fits(loads, Room(memory_bytes=self.fleet.types[gpu_type].memory_bytes)) else None

    def _working(self) -> tuple[int, ...]:
        return tuple(one for one in range(len(self.fleet.types)) if one not in self.profiling_types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """Ours: a job joins the set to whose throughput it adds most, where nobody becomes slower than promised."""

    fleet: Fleet
    foresight: Foresight
    name: str = "sets"
    backfill: Backfill = "reserve"
    most_per_gpu: int = MOST_JOBS

    def demand(self, ask: Ask) -> Demand:
        """Return a GPU that others may use as well, or whole GPUs."""
        types = tuple(range(len(self.fleet.types)))
        if (
            ask.gpu_count > 1
            or ask.stage == "rescued"
            or any((ask.kind, one) not in self.foresight.loads for one in types)
        ):
            return whole(self.fleet, ask)
        return Demand(types=types, alone=False, accepted_slowdown=ACCEPTED)

    def rank(self, _: Ask, __: int, /) -> float:
        """Return the same for all: the older job is first."""
        return 0.0

    def cost(self, gpu_type: int, tenants: Sequence[Ask], newcomer: Ask) -> float | None:
        """Return less, the more the job adds; an empty GPU comes first, on which it adds a whole one."""
        kinds = [one.kind for one in tenants]
        loads = [self.foresight.loads[one, gpu_type] for one in (*kinds, newcomer.kind)] if tenants else []
        if sum(load.memory_bytes for load in loads) > self.fleet.types[gpu_type].memory_bytes:
            return None
        matrix = self.foresight.beside[gpu_type]
        gain = added(together(matrix, kinds), together(matrix, [*kinds, newcomer.kind]), ACCEPTED) if tenants else 1.0
        return None if gain is None else -gain


def whole(fleet: Fleet, ask: Ask, types: Sequence[int] | None = None) -> Demand:
    """Return whole GPUs of the types that have enough memory and are enough, in the order of *types*."""
    chosen = range(len(fleet.types)) if types is None else types
    return Demand(
        types=tuple(
            one
            for one in chosen
            if fleet.types[one].memory_bytes > ask.above_bytes and fleet.types[one].gpu_count >= ask.gpu_count
        )
    )


def known_load(load: Load, utilization: float | None = None, memory_bytes: float | None = None) -> Load:
    """Return *load* with what was observed in place of what was predicted."""
    return Load(
        utilization=load.utilization if utilization is None else utilization,
        memory_bytes=load.memory_bytes if memory_bytes is None else memory_bytes,
    )
