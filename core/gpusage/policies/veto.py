"""Keeps a new share off nodes where it, or a job that runs there now, might become slower than was accepted.

Invariants (docs/decisions/policies.md):

1. No job waits for this: nodes are avoided only where another one has room for the job now, in each of its partitions
   and of the GPU types that it prefers; and only where a job that waits all the same can be released.
2. Without neighbours nothing is avoided.
3. The names that are avoided have `MOST_BYTES` at most: a manager's field, and the job's annotation, hold them whole.
4. A decision takes a few milliseconds, however many jobs run: it looks at `MOST_WEIGHED` of them at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpusage.policies.partners.company import trouble
from gpusage.policies.place import admitted_candidates
from gpusage.policies.shares.choice import could_run, is_enough
from gpusage.policies.shares.price import need_on, offers
from gpusage_hooks.types import Candidate, Decision, Neighbour, NodeKind, PolicyInput

MOST_BYTES = 256
MOST_WEIGHED = 500
"""Neighbours that are weighed; nodes beyond these count as free of trouble, and the job may run there."""
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """A node that has room for the job now."""

    node: str
    kind: NodeKind
    place: Candidate


def decide_veto(case: PolicyInput, draft: Decision) -> Decision | None:
    """Name the nodes that the job of *draft* is to avoid; ``None`` where there are none, or no others have room."""
    if not _may_steer(case, draft):
        return None
    seats = tuple(_seats(case, draft))
    troubles = _troubles(seats, case, draft)
    avoided = sorted(troubles)
    left = [seat for seat in seats if seat.node not in troubles]
    if not avoided or len(",".join(avoided)) > MOST_BYTES or not _is_served(left, case, draft):
        return None
    why = " or ".join(sorted({*troubles.values()}))
    request = replace(draft.request, avoided_nodes=(*draft.request.avoided_nodes, *avoided))
    reasons = (*draft.reasons, f"kept off {_names(avoided)}, where {why}")
    return replace(draft, request=request, reasons=reasons, plugin=__name__)


def _may_steer(case: PolicyInput, draft: Decision) -> bool:
    """Return whether the job has a share, and is held back by nothing if it is kept off nodes."""
    is_share = draft.request.mps_thread_percent is not None
    can_be_let_go = draft.request.steerable and case.cluster.releases
    return is_share and can_be_let_go and case.rules.sharing.keep_apart and bool(case.cluster.neighbours)


def _seats(case: PolicyInput, draft: Decision) -> Iterator[_Seat]:
    """Yield the nodes on which the share could start now."""
    request, share_percent = draft.request, draft.request.mps_thread_percent or 0
    for place in admitted_candidates(case):
        required = not request.bound_types or place.name in request.bound_types
        for kind in place.pool.node_kinds if required and place.pool.mps_per_gpu else ():
            if any(could_run(kind, request, name) for name in _partitions(case)):
                for room in kind.rooms:
                    if room.node not in request.avoided_nodes and is_enough(room, share_percent, request):
                        yield _Seat(node=room.node, kind=kind, place=place)


def _troubles(seats: Sequence[_Seat], case: PolicyInput, draft: Decision) -> Mapping[str, str]:
    """Return what might go wrong on each node where anything might, as far as the two limits let nodes be looked at."""
    there = _by_node(case.cluster.neighbours)
    shared = [seat for seat in seats if seat.node in there]
    newcomers = {place.name: _newcomer(place, case, draft) for place in case.places if shared}
    troubles: dict[str, str] = {}
    left = MOST_BYTES + 1  # each name has a comma but one
    weighed = 0
    for seat in shared:
        weighed += len(there[seat.node])
        if left < 0 or weighed > MOST_WEIGHED:
            break
        why = trouble(newcomers[seat.place.name], there[seat.node], case.rules)
        if why:
            troubles[seat.node] = why
            left -= len(seat.node) + 1
    return troubles


def _by_node(neighbours: Sequence[Neighbour]) -> Mapping[str, list[Neighbour]]:
    there: dict[str, list[Neighbour]] = {}
    for neighbour in neighbours:
        for node in neighbour.nodes:
            there.setdefault(node, []).append(neighbour)
    return there


def _newcomer(place: Candidate, case: PolicyInput, draft: Decision) -> Neighbour:
    """Return the job of *draft* as a neighbour that it would be at *place*."""
    share_percent = draft.request.mps_thread_percent or 0
    shares = offers((place,), case.request, case.rules.sharing)
    on_share = next((need_on(offer) for offer in shares if offer.share_percent == share_percent), place.need)
    return Neighbour(
        nodes=(),
        share_percent=share_percent,
        thread_percent=draft.request.thread_cap_percent or share_percent,
        need=on_share,
        workload=case.workload,
    )


def _is_served(left: Sequence[_Seat], case: PolicyInput, draft: Decision) -> bool:
    """Return whether the job could start on one of *left* in each of its partitions, on GPUs that it prefers."""
    wished = draft.request.preferred_gpus
    liked = [seat for seat in left if not wished or seat.place.name in wished]
    return all(any(could_run(seat.kind, case.request, name) for seat in liked) for name in _partitions(case))


def _partitions(case: PolicyInput) -> tuple[str, ...]:
    """Return the partitions that may run the job; ``""`` is any."""
    return case.request.partitions or (case.cluster.default_partition or "",)


def _names(nodes: Sequence[str]) -> str:
    more = len(nodes) - _SHOWN
    return ", ".join(nodes[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
