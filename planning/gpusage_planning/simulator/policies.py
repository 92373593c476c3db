"""The policies that are compared, as the engine asks them.

`Production` asks `Advisor.decide` once for each kind of jobs. Every decision is that on the empty cluster, so it rests
on no queue; a job that ran out of memory gets a whole GPU. The generation alone may be chosen when the job comes, by
`gpusage.policies.preference`, as gpusaged does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpusage.decisions.advisor import Advisor
from gpusage.policies.candidates import WIDEST_SHARE, is_predictable
from gpusage.policies.preference import JobSpeeds, preferred_among_jobs
from gpusage.service.reservations import REMEMBERED_JOBS
from gpusage_hooks.types import (
    Candidate,
    Cluster,
    DecisionRequest,
    GpuRequest,
    Job,
    ModelRequest,
    Rules,
    SharingRules,
)
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_planning.simulator.contract import Arrival, Demand, JobRequest, Kind, Policy
from gpusage_planning.simulator.fleet import Fleet
from gpusage_planning.simulator.predictions import (
    MOST_JOBS,
    Foresight,
    Models,
    added,
    colocated_throughputs,
    fits,
)

PROFILING_S = 60.0
"""A minute alone, as in Yeung et al."""
ACCEPTED = SharingRules().maximum_slowdown
WHOLE = 100
MOST_PER_GPU = 4
TypesOf = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slots(Policy):
    """Whole GPUs: no two jobs on one.

    Attributes:
        types_of: GPU types that a kind insists on; all for the others.
    """

    fleet: Fleet
    types_of: TypesOf = field(default_factory=dict)
    name: str = "slots"

    def demand(self, ask: JobRequest) -> Demand:
        """Return whole GPUs."""
        return self.whole_gpus(ask, self.types(ask.kind))

    def types(self, kind: int) -> tuple[int, ...]:
        """Return the GPU types on which jobs of *kind* may run."""
        return self.types_of.get(kind) or tuple(range(len(self.fleet.types)))

    def whole_gpus(self, ask: JobRequest, where: Sequence[int]) -> Demand:
        """Return whole GPUs of the types of *where*, in their order, that have enough memory and are enough."""
        types = ((one, self.fleet.types[one]) for one in where)
        large = ((one, type_) for one, type_ in types if type_.memory_bytes > ask.above_bytes)
        return Demand(types=tuple(one for one, type_ in large if type_.gpu_count >= ask.gpu_count))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing(Slots):
    """Yeung's: first fit decreasing on utilization and memory; a job that runs out of memory gets a whole GPU.

    Attributes:
        foresight: Of kinds that it does not know, jobs get whole GPUs.
        profiles: Whether each job is profiled first, Yeung's reactive way; *foresight* is what that shows.
        profiling_types: GPU types on which jobs are profiled; the others are for work.
    """

    foresight: Foresight
    name: str = "packing"
    most_per_gpu: int = MOST_JOBS
    profiles: bool = False
    profiling_types: tuple[int, ...] = ()

    def demand(self, ask: JobRequest) -> Demand:
        """Return a GPU that others may use as well, a profiling run, or whole GPUs."""
        where = tuple(one for one in self.types(ask.kind) if one not in self.profiling_types)
        is_known = all((ask.kind, one) in self.foresight.loads for one in where)
        if ask.gpu_count > 1 or ask.stage == "rescued" or not is_known:
            return self.whole_gpus(ask, where)
        if self.profiles and ask.stage == "first":
            return Demand(types=self.profiling_types or where, profiling_s=PROFILING_S)
        return Demand(types=where, alone=False, accepted_slowdown=ACCEPTED)

    def rank(self, ask: JobRequest, gpu_type: int) -> float:
        """Return the busiest first."""
        load = self.foresight.loads.get((ask.kind, gpu_type))
        return -1.0 if load is None else -load.utilization

    def cost(self, gpu_type: int, tenants: Sequence[JobRequest], newcomer: JobRequest) -> float | None:
        """Return the same for every GPU that has room: the first one is taken."""
        loads = [self.foresight.loads[one.kind, gpu_type] for one in (*tenants, newcomer)] if tenants else []
        return 0.0 if fits(loads, self.fleet.types[gpu_type].memory_bytes) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sets(Packing):
    """Ours: a job joins the set to whose throughput it adds most, where nobody becomes slower than promised."""

    name: str = "sets"

    def rank(self, _: JobRequest, __: int, /) -> float:
        """Return the same for all: the older job is first."""
        return 0.0

    def cost(self, gpu_type: int, tenants: Sequence[JobRequest], newcomer: JobRequest) -> float | None:
        """Return less, the more the job adds; an empty GPU comes first, on which it adds a whole one."""
        if not tenants:
            # An empty GPU adds a whole job, more than any set can.
            return -1.0

        kinds = [one.kind for one in tenants]
        loads = (self.foresight.loads[one, gpu_type] for one in (*kinds, newcomer.kind))
        if sum(load.memory_bytes for load in loads) > self.fleet.types[gpu_type].memory_bytes:
            return None

        matrix = self.foresight.pair_throughputs[gpu_type]
        before, after = (colocated_throughputs(matrix, some) for some in (kinds, [*kinds, newcomer.kind]))
        gain = added(before, after, ACCEPTED)
        return None if gain is None else -gain


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Production(Slots):
    """The policies of production with one rule for shares.

    Attributes:
        online: Whether each job is compared with recent ones when it arrives.
        late: Of each user's newest job, how long a step takes on each GPU type; the newest last.
    """

    kinds: tuple[Kind, ...]
    models: Models
    advisor: Advisor
    name: str = "price"
    remembers: bool = True
    most_per_gpu: int = MOST_PER_GPU
    online: bool = False
    demands: dict[JobRequest, Demand] = field(default_factory=dict)
    late: dict[int, JobSpeeds] = field(default_factory=dict)
    places: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)

    def demand(self, ask: JobRequest) -> Demand:
        """Return what the advisor decides for the kind."""
        if ask not in self.demands:
            self.demands[ask] = self._decided(ask)
        return self.demands[ask]

    def cost(self, _: int, tenants: Sequence[JobRequest], newcomer: JobRequest) -> float | None:
        """Return what is left of the GPU: the fullest one that has room is taken, as workload managers do."""
        booked = sum(self.demand(one).share_percent for one in (*tenants, newcomer))
        # Without a wall, the jobs on a GPU are one user's.
        is_mixed = any(one.user != newcomer.user for one in tenants)
        return None if booked > WHOLE or is_mixed else float(WHOLE - booked)

    def _decided(self, ask: JobRequest, cluster: Cluster | None = None) -> Demand:
        graph, kind = self.models.graphs.get(ask.kind), self.kinds[ask.kind]
        where = self.types(ask.kind)
        if graph is None or ask.stage in ("rescued", "released"):
            return self.whole_gpus(ask, where)
        request = GpuRequest(gpu_count=ask.gpu_count, gpu_type=kind.gpu_type)
        job = Job(
            submission=DecisionRequest(manager=self.fleet.cluster.manager),
            request=request,
            request_text="",
            model_request=ModelRequest(model=kind.name, workload=self.models.workloads[ask.kind]),
        )
        decided = self.advisor.decide(job, graph, cluster or self.fleet.cluster).request
        ordered = [self._place(name) for name in decided.bound_types or decided.preferred_gpus]
        others = [] if decided.bound_types else [one for one in where if one not in ordered]
        wished = [ask.first] if ask.first >= 0 and not decided.bound_types else []
        ordered = [*wished, *(one for one in (*ordered, *others) if one not in wished)]
        demand = self.whole_gpus(ask, [one for one in ordered if one in where])

        percent = decided.mps_thread_percent
        if percent is None:
            return demand
        return replace(
            demand,
            share_percent=percent,
            thread_percent=percent if decided.thread_cap_percent is None else decided.thread_cap_percent,
            alone=False,
            memory_cap_bytes=None if decided.memory_cap_bytes is None else float(decided.memory_cap_bytes),
            accepted_slowdown=self.advisor.rules.sharing.maximum_slowdown,
        )

    def arriving(self, ask: JobRequest, seen: Arrival) -> JobRequest:
        """Return *ask* with the GPU type that it prefers among the recent jobs."""
        where = self._places_of(ask) if self.online and ask.stage == "first" else ()
        if len(where) < 2:  # nothing to choose
            return ask

        free = {one.name: count for one, count in zip(self.fleet.types, seen.free_counts, strict=True)}
        now = [replace(place, pool=replace(place.pool, free_gpu_count=free[place.name])) for place in where]
        chosen = preferred_among_jobs(now, [*self.late.values()], ask.gpu_count)
        # gpusaged remembers a job whatever it decided for it: of each user the newest.
        self.late.pop(seen.user, None)
        self.late[seen.user] = {place.name: place.need.step_time_s.value for place in where}
        if len(self.late) > REMEMBERED_JOBS:
            del self.late[next(iter(self.late))]
        return ask._replace(first=self._place(chosen[0].name)) if chosen else ask

    def _places_of(self, ask: JobRequest) -> tuple[Candidate, ...]:
        """Return where jobs of the kind may run, as the advisor would see it."""
        if ask.kind in self.places:
            return self.places[ask.kind]

        pools = {pool.site_type: pool for pool in self.fleet.cluster.pools}
        candidates = []
        for place in self.types(ask.kind):
            one, need = self.fleet.types[place], self.models.needs.get((ask.kind, place))
            if one.name not in pools or one.gpu is None or need is None or not need.fits:
                continue
            candidate = Candidate(pool=pools[one.name], gpu=one.gpu, need=need)
            if is_predictable(candidate) and need.sm_activity.high - need.sm_activity.low <= WIDEST_SHARE:
                candidates.append(candidate)
        self.places[ask.kind] = tuple(candidates)
        return self.places[ask.kind]

    def _place(self, name: str) -> int:
        return next(place for place, one in enumerate(self.fleet.types) if one.name == name)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shipped(Production):
    """What gpusaged does, where it may change jobs: it decides when a job comes, by the room that there is then.

    Attributes:
        choices: What it decided so far.
        numbers: Of each kind and room of each type, the number of the choice.
    """

    name: str = "price-online"
    online: bool = True
    choices: list[Demand] = field(default_factory=list)
    numbers: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)

    def demand(self, ask: JobRequest) -> Demand:
        """Return what was decided when the job came."""
        if ask.choice < 0 or ask.stage != "first":
            return self._decided(ask._replace(stage="released"))
        demand = self.choices[ask.choice]
        return replace(demand, types=tuple(sorted(demand.types, key=lambda one: one != ask.first)))

    def arriving(self, ask: JobRequest, seen: Arrival) -> JobRequest:
        """Return *ask* with what is decided now; a share stands beside its user's others alone."""
        preferring = Production.arriving(self, ask, seen)
        if ask.stage != "first" or ask.gpu_count > 1 or ask.kind not in self.models.graphs:
            return preferring

        rooms = tuple(self._room(place, seen) for place in range(len(self.fleet.types)))
        choice = self.numbers.get((ask.kind, rooms))
        if choice is None:
            choice = self.numbers[ask.kind, rooms] = len(self.choices)
            self.choices.append(self._decided(ask, self._cluster(rooms)))
        if self.choices[choice].alone:
            return preferring._replace(choice=choice)
        return ask._replace(choice=choice, user=seen.user)

    def released(self, ask: JobRequest) -> JobRequest | None:
        """Return a request for a whole GPU where a share was decided."""
        is_share = ask.stage == "first" and ask.choice >= 0 and not self.choices[ask.choice].alone
        return ask._replace(stage="released", choice=-1, user=-1) if is_share else None

    def _room(self, place: int, seen: Arrival) -> int:
        """Return the largest part of a GPU of a type that is free for the user, in percent."""
        if seen.free_counts[place]:
            return WHOLE
        own = [jobs for jobs in seen.open_sets(place) if all(one.user == seen.user for one in jobs)]
        return max((WHOLE - sum(self.demand(one).share_percent for one in jobs) for jobs in own), default=0)

    def _cluster(self, rooms: Sequence[int]) -> Cluster:
        percents = {one.name: room for one, room in zip(self.fleet.types, rooms, strict=True)}
        pools = (
            replace(pool, free_gpu_count=int(room == WHOLE), free_share_percent=room)
            for pool in self.fleet.cluster.pools
            if (room := percents.get(pool.site_type)) is not None
        )
        return replace(self.fleet.cluster, pools=tuple(pools))


def production(fleet: Fleet, kinds: tuple[Kind, ...], models: Models, advisor: Advisor) -> Production:
    """Return the policy with the usual settings."""
    return Production(fleet=fleet, kinds=kinds, models=models, advisor=replace(advisor, rules=Rules()))


def with_requested_shares(policy: Policy, kinds: Sequence[Kind]) -> Policy:
    """Return *policy*, which decides for all jobs of *kinds* but those that ask for a part of a GPU.

    They get it under every policy, as gpusage keeps such requests. The part is booked as a workload manager books it:
    nothing limits the job's threads or its memory.
    """
    shares = [kind.share_percent for kind in kinds]
    if min(shares) == WHOLE_PERCENT:
        return policy

    return _RequestedShares(
        name=policy.name,
        backfill=policy.backfill,
        remembers=policy.remembers,
        most_per_gpu=max(policy.most_per_gpu, WHOLE_PERCENT // min(shares)),
        policy=policy,
        shares=shares,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RequestedShares(Policy):
    """A policy with shares that it does not decide."""

    policy: Policy
    shares: Sequence[int]

    def demand(self, ask: JobRequest) -> Demand:
        """Return the part that the job asks for, on the policy's GPU types; a whole GPU once its memory did not do."""
        decided, percent = self.policy.demand(ask), self.shares[ask.kind]
        if percent == WHOLE_PERCENT or ask.stage == "rescued":
            return decided
        return Demand(types=decided.types, share_percent=percent, alone=False)

    def rank(self, ask: JobRequest, gpu_type: int) -> float:
        """Return the policy's."""
        return self.policy.rank(ask, gpu_type)

    def arriving(self, ask: JobRequest, seen: Arrival) -> JobRequest:
        """Return the job as the policy would have it wait."""
        return self.policy.arriving(ask, seen)

    def released(self, ask: JobRequest) -> JobRequest | None:
        """Return as what the policy would have it wait on."""
        return self.policy.released(ask)

    def cost(self, gpu_type: int, tenants: Sequence[JobRequest], newcomer: JobRequest) -> float | None:
        """Return what is left of the GPU where one of the jobs asks for a part: the fullest that has room is taken."""
        together = (*tenants, newcomer)
        if all(self.shares[one.kind] == WHOLE_PERCENT for one in together):
            is_full = len(tenants) >= self.policy.most_per_gpu
            return None if is_full else self.policy.cost(gpu_type, tenants, newcomer)
        booked = sum(self.demand(one).share_percent for one in together)
        return None if booked > WHOLE_PERCENT else float(WHOLE_PERCENT - booked)
