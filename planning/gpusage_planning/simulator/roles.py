"""What the policy and the truth say of jobs that are alike, asked once and then kept.

A role is the number of an `JobRequest`; a set is the sorted roles of the jobs on one GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpusage.devices.shares import memory_cap_bytes
from gpusage_hooks.errors import RequestError
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_planning.simulator.contract import Demand, JobRequest, Policy, Tenant, Truth
from gpusage_planning.simulator.fleet import Fleet

GpuSet = tuple[int, ...]


class Scene(NamedTuple):
    """What happens on a GPU with one set of roles: each one's work in a second, and the GPU's busy share."""

    speeds: Mapping[int, float]
    utilization: float
    memory_bytes: float


class Roles:
    """All roles of one simulation.

    Attributes:
        are_ranked: Whether the policy's ranks count; an order takes their place.
    """

    def __init__(self, fleet: Fleet, policy: Policy, truth: Truth) -> None:
        self.asks: list[JobRequest] = []
        self.demands: list[Demand] = []
        self._fleet, self._policy, self._truth = fleet, policy, truth
        self._numbers: dict[JobRequest, int] = {}
        self.counts: list[int] = []
        self._costs: dict[tuple[int, GpuSet], dict[int, float | None]] = {}
        self._scenes: dict[tuple[int, GpuSet], Scene] = {}
        self._ranks: list[dict[int, float]] = [{} for _ in fleet.types]
        self.are_ranked = True

    def number(self, ask: JobRequest) -> int:
        """Return the role of *ask*.

        Raises:
            RequestError: No GPU type has what it asks for.
        """
        role = self._numbers.get(ask)
        if role is None:
            demand = self._policy.demand(ask)
            check(ask, demand, self._fleet)
            role = self._numbers[ask] = len(self.asks)
            self.asks.append(ask)
            self.demands.append(demand)
            self.counts.append(ask.gpu_count)

        return role

    def rank(self, role: int, gpu_type: int) -> float:
        """Return the role's place in the queue for GPUs of *gpu_type*."""
        ranks = self._ranks[gpu_type]
        rank = ranks.get(role)
        if rank is None:
            rank = ranks[role] = self._policy.rank(self.asks[role], gpu_type) if self.are_ranked else 0.0
        return rank

    def cost(self, gpu_type: int, here: GpuSet, role: int) -> float | None:
        """Return what it costs to put *role* beside the set *here*, ``None`` where it must not be."""
        costs = self.costs(gpu_type, here)
        return costs[role] if role in costs else self.ask_cost(gpu_type, here, role)

    def costs(self, gpu_type: int, here: GpuSet) -> Mapping[int, float | None]:
        """Return what is known by now of `cost` beside the set *here*, by role."""
        costs = self._costs.get((gpu_type, here))
        if costs is None:
            costs = self._costs[gpu_type, here] = {}
        return costs

    def ask_cost(self, gpu_type: int, here: GpuSet, role: int) -> float | None:
        """JobRequest the policy for `cost`, and keep its answer."""
        demand, cost = self.demands[role], None
        if gpu_type in demand.types and not (here and (demand.alone or self.is_closed(here))):
            cost = self._policy.cost(gpu_type, [self.asks[one] for one in here], self.asks[role])
        self._costs[gpu_type, here][role] = cost
        return cost

    def speed(self, role: int, gpu_type: int) -> float:
        """Return the work that *role* does in a second, alone on whole GPUs of the type."""
        return self._truth.speed(self.asks[role].kind, gpu_type)

    def scene(self, gpu_type: int, here: GpuSet) -> Scene:
        """Return what happens where the set *here* stands on one GPU."""
        key = (gpu_type, here)
        scene = self._scenes.get(key)
        if scene is None:
            scene = self._scenes[key] = self._new_scene(gpu_type, here)
        return scene

    def runs_out(self, gpu_type: int, here: GpuSet, role: int) -> bool:
        """Return whether *role*, the last one in the set *here*, runs out of memory."""
        demand = self.demands[role]
        own = self._truth.memory_bytes(self.asks[role].kind, gpu_type)
        whole = self._fleet.types[gpu_type].memory_bytes
        cap = demand.memory_cap_bytes
        if cap is not None and demand.share_percent < WHOLE_PERCENT:  # the node knows which GPU the job got
            cap = memory_cap_bytes(whole, demand.share_percent)
        return (cap is not None and own > cap) or self.scene(gpu_type, here).memory_bytes > whole

    def is_closed(self, here: GpuSet) -> bool:
        """Return whether nobody may join the set *here*, whoever it is."""
        return len(here) >= self._policy.most_per_gpu or any(self.demands[role].alone for role in here)

    def _new_scene(self, gpu_type: int, here: GpuSet) -> Scene:
        tenants = [Tenant(self.asks[role].kind, self.demands[role].thread_percent) for role in here]
        together = self._truth.colocation_of(tenants, gpu_type)
        speeds = {
            role: speed * self._truth.speed(tenant.kind, gpu_type)
            for role, tenant, speed in zip(here, tenants, together.speeds, strict=True)
        }
        memory_bytes = sum(self._truth.memory_bytes(tenant.kind, gpu_type) for tenant in tenants)

        return Scene(speeds=speeds, utilization=together.utilization, memory_bytes=memory_bytes)


def check(ask: JobRequest, demand: Demand, fleet: Fleet) -> None:
    """Raise where the policy gives a job no GPU type that has enough GPUs.

    Raises:
        RequestError: There is none.
    """
    most = max((fleet.types[one].gpu_count for one in demand.types), default=0)
    if most < ask.gpu_count:
        message = (
            f"A job of kind {ask.kind} must fit on some GPU type; got {ask.gpu_count} GPUs where at most {most} would "
            "do. Take it out of the jobs, or give the cluster more GPUs."
        )
        raise RequestError(message)
