"""The choice among the shares whose price holds, whether it confines the job to some GPU types, and slices.

Invariants:

1. A share that does not confine the job holds on every GPU type that it may land on.
2. A job is confined only to GPU types on one of whose nodes it could run, in each partition that it names, as far as
   the cluster was seen: a manager may refuse a job that one of its partitions could never run.
3. A job is confined to GPU types that count the same units, so that one number of them is the same share.
4. On any GPU type that the job may land on, what it needs on any of them is within its share's part of the memory;
   where no wall is, what it likely takes.
5. A slice (MIG) in place of a whole GPU is isolated, and has no partners. It is taken only where the whole of the job's
   memory fits, at the pessimistic end, and its price is accepted; it confines the job to its type. A type that the user
   named is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpusage.policies.candidates import admits, admitted_candidates, partitions_of, step_time_s
from gpusage.policies.share_price import Limits, Offer, can_promise
from gpusage_hooks.types import Binding, Candidate, GpuPool, GpuRequest, LimitedBy, NodeKind, PolicyInput, Price, Room
from gpusage_hooks.units import WHOLE_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A share, and the GPU types on which it is offered.

    Attributes:
        offers: One for each candidate that the job may land on; all of one size.
        binding: Whether the job is confined to these candidates.
    """

    offers: tuple[Offer, ...]
    binding: bool

    @property
    def share_percent(self) -> int:
        """Return the size of the share."""
        return self.offers[0].share_percent

    @property
    def thread_cap_percent(self) -> int | None:
        """Return the percentage of the threads that the job may use, where that is more than its share."""
        return self.offers[0].threads.share_percent if self.offers[0].threads else None

    @property
    def gpu_time(self) -> float:
        """Return the GPU time of a step, against that of the whole GPU, where it is largest."""
        return max(offer.gpu_time for offer in self.offers)

    @property
    def cap_bytes(self) -> int:
        """Return the memory that the job may use wherever it lands, in bytes; its node may know more."""
        return min(offer.cap_bytes for offer in self.offers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Where a job may run.

    Attributes:
        request: What it asks for.
        partitions: Those that may run it; ``""`` is any.
        candidates: All that may run it, those included that cannot be shared.
        closed: Whether ``candidates`` are all that could run a share: no unknown GPU type can be shared.
        usual_s: How long a step takes on the GPU that the job would have without a share.
        releases: As in `Cluster`.
    """

    request: GpuRequest
    partitions: tuple[str, ...]
    candidates: Sequence[Candidate]
    closed: bool
    usual_s: float
    releases: bool = True


def choose(offers: Sequence[Offer], reach: Reach, within: Limits, bind: Binding) -> Choice | None:
    """Return the share with the least GPU time; of equal shares, the unconfined."""
    promised = [offer for offer in offers if can_promise(offer, within)]
    choices: list[Choice] = []
    for size in sorted({offer.share_percent for offer in promised}):
        # The job may land on any of these types, so its needs on all of them must fit its share of each one's memory.
        alike = [offer for offer in promised if offer.share_percent == size]
        most_bytes: dict[LimitedBy, float] = {}
        for offer in alike:
            limit = offer.candidate.pool.limited_by
            most_bytes[limit] = max(offer.needed_bytes, most_bytes.get(limit, 0.0))
        alike = [offer for offer in alike if offer.has_memory(most_bytes[offer.candidate.pool.limited_by])]
        everywhere = all(kind.has_shares for candidate in reach.candidates for kind in candidate.pool.node_kinds)
        if alike and reach.closed and everywhere and len(alike) == len(reach.candidates):
            choices.append(Choice(offers=tuple(alike), binding=False))

        # Confined, the job may be slower than on the GPU that it would have had only as far as it accepts.
        # A number of units is the same share only on GPUs that count as many.
        bound = [offer for offer in alike if could_run_on(offer.candidate, reach) and is_fast(offer, reach, within)]
        for units in dict.fromkeys(offer.candidate.pool.mps_per_gpu for offer in bound):
            counted = tuple(offer for offer in bound if offer.candidate.pool.mps_per_gpu == units)
            # Where no other type can be shared, the share itself leads here; else each type needs a feature.
            if not holds_all_shares([offer.candidate for offer in counted], reach):
                counted = tuple(offer for offer in counted if offer.candidate.pool.holding_feature)
            if counted and may_bind(counted, reach, bind):
                choices.append(Choice(offers=counted, binding=True))
    return min(choices, key=lambda choice: (choice.gpu_time, choice.binding), default=None)


def holds_all_shares(candidates: Sequence[Candidate], reach: Reach) -> bool:
    """Return whether a job that asks for a share can land on *candidates* alone, of all places of the job."""
    places = {candidate.name for candidate in reach.candidates if candidate.pool.may_hold_shares}
    return reach.closed and places <= {candidate.name for candidate in candidates}


def can_bind(candidate: Candidate, reach: Reach) -> bool:
    """Return whether a share can be confined to *candidate*: by a feature, or because no other type can be shared.

    If its nodes are not known, it is enough that *candidate* is one of the job's candidates.
    """
    leads_here = candidate.pool.holding_feature is not None or holds_all_shares([candidate], reach)
    return leads_here and could_run_on(candidate, reach)


def can_be_held(policy_input: PolicyInput) -> bool:
    """Return whether the job of *policy_input* can be held to the types that its request requires.

    Each of them needs a name to ask for, and in each partition of the job one of their nodes must be able to run it.
    """
    request = policy_input.request
    pools = [pool for pool in policy_input.cluster.pools if admits(pool, request)]
    named = all(pool.exact_feature is not None for pool in pools)
    return request.bindable and named and all(reached_partitions(pools, policy_input))


def reached_partitions(pools: Iterable[GpuPool], policy_input: PolicyInput, *, in_part: bool = False) -> list[bool]:
    """Return of each partition of the job whether nodes of *pools* could run it there; or a part of it, *in_part*.

    A manager may refuse a job that one of its partitions could never run.
    """
    request = policy_input.request
    kinds = [kind for pool in pools for kind in pool.node_kinds or (NodeKind(),)]
    reached = [
        [kind for kind in kinds if kind == NodeKind() or kind.could_run(request, name)]
        for name in partitions_of(policy_input)
    ]
    return [*map(bool if in_part else request.is_held_by, reached)]


def large_enough_types(policy_input: PolicyInput) -> tuple[str, ...]:
    """Return the GPU types to hold the job to, lest it land on one with too little memory; none where it need not be.

    First are those with room now, then those on which its steps take least of all that the type can do.
    """
    small, large = list[Candidate](), list[Candidate]()
    for each in admitted_candidates(policy_input):
        need = each.least_need
        # It likely lacks memory there, or may lack it by a prediction that is good.
        is_known = need.familiar and need.source != "history"
        is_small = not need.fits and (is_known or need.required_bytes.value > each.gpu.memory_bytes)
        (small if is_small else large).append(each)
    if not small or not policy_input.request.bindable:
        return ()

    if not any(reached_partitions([each.pool for each in small], policy_input, in_part=True)):
        return ()
    if not all(reached_partitions([each.pool for each in large], policy_input)):
        return ()
    count = policy_input.request.gpu_count
    large.sort(key=lambda each: (not each.pool.has_room(WHOLE_PERCENT, count), step_time_s(each) / each.pool.gpu_count))
    return tuple(dict.fromkeys(each.name for each in large))


def could_run_on(candidate: Candidate, reach: Reach) -> bool:
    """Return whether *candidate* has nodes for the job in each of its partitions, and nothing else ties the job."""
    kinds = kinds_for(candidate)
    everywhere = all(any(kind.could_run(reach.request, name) for kind in kinds) for name in reach.partitions)
    return reach.request.bindable and (not kinds or everywhere)


def kinds_for(candidate: Candidate) -> tuple[NodeKind, ...]:
    """Return the kinds of nodes on which a share of *candidate*, or a slice, can start."""
    pool = candidate.pool
    return tuple(kind for kind in pool.node_kinds if kind.has_shares or candidate.gpu.parent_gpu is not None)


def is_fast(offer: Offer, reach: Reach, within: Limits) -> bool:
    """Return whether the job is not slower here than its limit lets it be, against the GPU that it would have had."""
    return offer.step_time_s.value <= reach.usual_s * within.expected


def may_bind(offers: Sequence[Offer], reach: Reach, bind: Binding) -> bool:
    """Return whether the site lets a share confine a job to the GPU types of *offers*."""
    # A bound job waits where its room is gone again, unless gpusaged may release it.
    if bind != "room" or not reach.releases:
        return bind == "always"

    for offer in offers:
        pool, request = offer.candidate.pool, reach.request
        rooms = [
            kind.room
            for kind in kinds_for(offer.candidate)
            if any(kind.could_run(request, name) for name in reach.partitions)
        ]

        # Where nothing is known of single nodes, the pool as a whole has to tell.
        if None in rooms or not rooms:
            if pool.has_room(offer.share_percent):
                return True
        elif any(is_enough(room, offer.share_percent, request) for room in rooms if room is not None):
            return True
    return False


def is_enough(room: Room, share_percent: int, request: GpuRequest) -> bool:
    """Return whether a share of *share_percent* of *request* could start now where *room* is."""
    return (
        room.share_percent >= share_percent
        and room.cpu_count >= request.cpu_count
        and room.host_memory_bytes >= request.host_memory_bytes
    )


def slice_offers(policy_input: PolicyInput) -> Iterator[Offer]:
    """Yield the slices that the job of *policy_input* may use, each whole.

    A job that names a GPU type may use slices of such a GPU, if its user or its site says so.
    """
    request, accepts = policy_input.request, policy_input.workload.slices
    whole = {each.gpu.name for each in admitted_candidates(policy_input)} if request.gpu_type else None
    is_allowed = whole is None or policy_input.rules.sharing.typed_slices if accepts is None else accepts

    may_repeat = request.repeatable and policy_input.cluster.repeats_slices
    for candidate in policy_input.candidates if is_allowed else ():
        parent = candidate.gpu.parent_gpu
        if parent is not None and candidate.pool.gpu_count and (whole is None or parent in whole):
            price = Price(gpu=candidate.gpu.name, share_percent=WHOLE_PERCENT, slowdown=candidate.need.slowdown)
            # A run that lacked memory is repeated only where the job may have more.
            repeatable = may_repeat and bool(larger_types(candidate, (), policy_input))
            yield Offer(candidate=candidate, request=replace(request, repeatable=repeatable), price=price)


def larger_types(candidate: Candidate, preferred: Sequence[str], policy_input: PolicyInput) -> tuple[str, ...]:
    """Return the GPU type for a job that lacks memory on the slice *candidate*; none where no type has more.

    A whole GPU comes before a larger slice, one with room now before others, and then one that the job prefers.
    """
    larger = [each for each in admitted_candidates(policy_input) if each.gpu.memory_bytes > candidate.gpu.memory_bytes]
    best = max(
        larger,
        key=lambda each: (
            each.gpu.parent_gpu is None,
            each.pool.has_room(WHOLE_PERCENT),
            each.name in preferred,
            each.gpu.memory_bytes,
        ),
        default=None,
    )
    return (best.name,) if best else ()


def choose_slice(
    offers: Sequence[Offer], reach: Reach, within: Limits, bind: Binding, *, smallest: bool = False
) -> Offer | None:
    """Return the slice that may be promised with the least SM time for a step, or the *smallest*; ``None`` for none."""
    possible = [
        offer
        for offer in offers
        if can_promise(offer, within)
        and could_run_on(offer.candidate, reach)
        and is_fast(offer, reach, within)
        and may_bind([offer], reach, bind)
    ]

    # A slice books its SMs for the whole step, as a share books its part of a GPU.
    def price(offer: Offer) -> tuple[float, int]:
        gpu = offer.candidate.gpu
        return gpu.sm_count * (1.0 if smallest else offer.step_time_s.value), gpu.memory_bytes

    return min(possible, key=price, default=None)
