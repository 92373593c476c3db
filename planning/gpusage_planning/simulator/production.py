"""What gpusage would decide in production: `Advisor.decide` itself, asked once for each kind of jobs.

Every decision is that on the empty cluster, so it rests on no queue; a job that ran out of memory gets a whole GPU. The
generation alone may be chosen when the job comes, by `gpusage.policies.generation`, as gpusaged does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpusage.decisions.advisor import Advisor
from gpusage.policies.candidates import WIDEST_SHARE, is_predictable
from gpusage.policies.generation import JobSpeeds, preferred_among_jobs
from gpusage.service.reservations import REMEMBERED_JOBS
from gpusage_hooks.types import (
    Candidate,
    DecisionRequest,
    GpuRequest,
    Job,
    ModelRequest,
    Rules,
    SharingRules,
)
from gpusage_planning.simulator.contract import Backfill, Demand, JobRequest
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.jobs import Kind
from gpusage_planning.simulator.models import Models
from gpusage_planning.simulator.policies import TypesOf, types, whole_gpu_demand

WHOLE = 100
MOST_PER_GPU = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Production:
    """The policies of production with one rule for shares.

    Attributes:
        online: Whether each job is compared with recent ones when it arrives.
        late: Of each recent job, how long a step takes on each GPU type; the newest last.
    """

    fleet: Fleet
    kinds: tuple[Kind, ...]
    models: Models
    advisor: Advisor
    name: str
    types_of: TypesOf = field(default_factory=dict)
    backfill: Backfill = "reserve"
    remembers: bool = True
    most_per_gpu: int = MOST_PER_GPU
    online: bool = False
    demands: dict[JobRequest, Demand] = field(default_factory=dict)
    late: deque[JobSpeeds] = field(default_factory=lambda: deque(maxlen=REMEMBERED_JOBS))
    places: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)

    def demand(self, ask: JobRequest) -> Demand:
        """Return what the advisor decides for the kind."""
        if ask not in self.demands:
            self.demands[ask] = self._decided(ask)
        return self.demands[ask]

    def rank(self, _: JobRequest, __: int, /) -> float:
        """Return the same for all: the older job is first."""
        return 0.0

    def cost(self, _: int, tenants: Sequence[JobRequest], newcomer: JobRequest) -> float | None:
        """Return what is left of the GPU: the fullest one that has room is taken, as workload managers do."""
        booked = sum(self.demand(one).share_percent for one in (*tenants, newcomer))
        return None if booked > WHOLE else float(WHOLE - booked)

    def _decided(self, ask: JobRequest) -> Demand:
        graph, kind = self.models.graphs.get(ask.kind), self.kinds[ask.kind]
        where = types(self.fleet, self.types_of, ask.kind)
        if graph is None or ask.stage == "rescued":
            return whole_gpu_demand(self.fleet, ask, where)
        request = GpuRequest(gpu_count=ask.gpu_count, gpu_type=kind.gpu_type)
        job = Job(
            submission=DecisionRequest(manager=self.fleet.cluster.manager),
            request=request,
            request_text="",
            model_request=ModelRequest(model=kind.name, workload=self.models.workloads[ask.kind]),
        )
        decided = self.advisor.decide(job, graph, self.fleet.cluster).request
        ordered = [self._place(name) for name in decided.bound_types or decided.preferred_gpus]
        others = [] if decided.bound_types else [one for one in where if one not in ordered]
        wished = [ask.first] if ask.first >= 0 and not decided.bound_types else []
        ordered = [*wished, *(one for one in (*ordered, *others) if one not in wished)]
        demand = whole_gpu_demand(self.fleet, ask, [one for one in ordered if one in where])
        return _with_share(demand, decided, self.advisor.rules.sharing)

    def arriving(self, ask: JobRequest, free_counts: Sequence[int]) -> JobRequest:
        """Return *ask* with the GPU type that it prefers among the recent jobs."""
        where = self._places_of(ask) if self.online and ask.stage == "first" and ask.gpu_count == 1 else ()
        if len(where) < 2:  # nothing to choose
            return ask
        free = {one.name: count for one, count in zip(self.fleet.types, free_counts, strict=True)}
        seen = [replace(place, pool=replace(place.pool, free_gpu_count=free[place.name])) for place in where]
        chosen = preferred_among_jobs(seen, self.late)
        self.late.append({place.name: place.need.step_time_s.value for place in where})
        return ask._replace(first=self._place(chosen[0].name)) if chosen else ask

    def _places_of(self, ask: JobRequest) -> tuple[Candidate, ...]:
        """Return where jobs of the kind may run, as the advisor would see it."""
        if ask.kind not in self.places:
            candidates = (self._candidate(ask.kind, one) for one in types(self.fleet, self.types_of, ask.kind))
            fitting = (place for place in candidates if place is not None and place.need.fits)
            self.places[ask.kind] = tuple(
                place
                for place in fitting
                if is_predictable(place) and place.need.sm_activity.high - place.need.sm_activity.low <= WIDEST_SHARE
            )
        return self.places[ask.kind]

    def _candidate(self, kind: int, gpu_type: int) -> Candidate | None:
        one, need = self.fleet.types[gpu_type], self.models.needs.get((kind, gpu_type))
        pool = next((pool for pool in self.fleet.cluster.pools if pool.site_type == one.name), None)
        return Candidate(pool=pool, gpu=one.gpu, need=need) if pool and one.gpu and need else None

    def _place(self, name: str) -> int:
        return next(place for place, one in enumerate(self.fleet.types) if one.name == name)


def production(fleet: Fleet, kinds: tuple[Kind, ...], models: Models, advisor: Advisor) -> Production:
    """Return the policy with the usual settings."""
    return Production(fleet=fleet, kinds=kinds, models=models, advisor=replace(advisor, rules=Rules()), name="price")


def _with_share(demand: Demand, decided: GpuRequest, rules: SharingRules) -> Demand:
    """Return *demand* with the share that was decided, where one was."""
    percent = decided.mps_thread_percent
    if percent is None:
        return demand
    return replace(
        demand,
        share_percent=percent,
        thread_percent=percent if decided.thread_cap_percent is None else decided.thread_cap_percent,
        alone=False,
        memory_cap_bytes=None if decided.memory_cap_bytes is None else float(decided.memory_cap_bytes),
        accepted_slowdown=rules.maximum_slowdown,
    )
