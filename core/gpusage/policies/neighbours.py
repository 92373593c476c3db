"""The stage ``veto``: a new share avoids nodes where it, or a job that runs there, might become slower than accepted.

The price of a share covers average and bad partners whose threads are limited to their shares. What it does not cover
is computed here from the jobs themselves. No GPU is to have two users, unless the site wants that, and a workload
manager gives a share the first GPU of a node with room, even if another one is free: so a share avoids the nodes where
another user's leaves it room. The needs for each resource of the GPU add up; where the sum is above 1, all
steps take that many times as long. And beside training, a request waits for kernels that no percentage divides, so a
promised latency has to hold there with a step of 1 / ``latency_margin`` times the length.

Invariants:

1. No job waits for this: nodes are avoided only where another one has room for the job now, in each of its partitions
   and of the GPU types that it prefers; and only where a job that waits all the same can be released.
2. Without neighbours nothing is avoided. One more neighbour, or one with a larger need, never makes trouble go away.
3. The names that are avoided have `MOST_BYTES` at most: a manager's field, and the job's annotation, hold them whole.
4. A decision takes a few milliseconds, however many jobs run: it looks at `MOST_WEIGHED` of them at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpusage.policies.candidates import admitted_candidates, partitions_of
from gpusage.policies.latency import latency_s
from gpusage.policies.share_choice import is_enough
from gpusage.policies.share_price import limits, need_on, offers
from gpusage_hooks.types import Candidate, Decision, Interval, Neighbour, NodeKind, PolicyInput, Rules
from gpusage_hooks.units import WHOLE_PERCENT

MOST_BYTES = 256
# 10,000 neighbours on 1,000 nodes took 57 ms, and slurmctld waits 40.
MOST_WEIGHED = 500
"""Neighbours that are weighed; nodes beyond these count as free of trouble, and the job may run there."""
BROKEN_PROMISE = "a promised latency might not hold"
TOO_BUSY = "a GPU might be too busy for all of its jobs"
OF_ANOTHER_USER = "another user's job has a share of a GPU"
_SHOWN = 3
_End = Callable[[Interval], float]
_Need = Callable[[Neighbour, _End], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """A node that has room for the job now."""

    node: str
    kind: NodeKind
    candidate: Candidate


def decide_veto(policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Name the nodes that the job of *draft* is to avoid; ``None`` where there are none, or no others have room."""
    request, cluster = draft.request, policy_input.cluster
    if request.mps_thread_percent is None or not policy_input.rules.sharing.keep_apart or not cluster.neighbours:
        return None
    if not (request.steerable and cluster.releases):  # a job that waits for its node could not be let go
        return None

    seats = tuple(_seats(policy_input, draft))
    troubles = _troubles(seats, policy_input, draft)
    avoided = sorted(troubles)
    if not avoided or len(",".join(avoided)) > MOST_BYTES:
        return None

    # The job must still be able to start now, in each of its partitions, on GPUs that it prefers.
    preferred = request.preferred_gpus
    left = [seat for seat in seats if seat.node not in troubles and (not preferred or seat.candidate.name in preferred)]
    for partition in partitions_of(policy_input):
        if not any(seat.kind.could_run(policy_input.request, partition) for seat in left):
            return None

    more = len(avoided) - _SHOWN
    names = ", ".join(avoided[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    why = " or ".join(sorted({*troubles.values()}))
    nodes, is_apart = (*request.avoided_nodes, *avoided), OF_ANOTHER_USER in troubles.values()
    request = replace(request, avoided_nodes=nodes, keeps_apart=is_apart)
    reasons = (*draft.reasons, f"avoids {names}, where {why}")
    return replace(draft, request=request, reasons=reasons, plugin=__name__)


def _seats(policy_input: PolicyInput, draft: Decision) -> Iterator[_Seat]:
    """Yield the nodes on which the share could start now."""
    request, share_percent = draft.request, draft.request.mps_thread_percent or 0
    for candidate in admitted_candidates(policy_input):
        is_allowed = not request.bound_types or candidate.name in request.bound_types
        for kind in candidate.pool.node_kinds if is_allowed and candidate.pool.mps_per_gpu else ():
            if not any(kind.could_run(request, name) for name in partitions_of(policy_input)):
                continue

            for room in kind.rooms:
                if room.node not in request.avoided_nodes and is_enough(room, share_percent, request):
                    yield _Seat(node=room.node, kind=kind, candidate=candidate)


def _troubles(seats: Sequence[_Seat], policy_input: PolicyInput, draft: Decision) -> Mapping[str, str]:
    """Return the trouble on each node that might have some, as far as the two limits let nodes be weighed."""
    by_node: dict[str, list[Neighbour]] = {}
    for neighbour in policy_input.cluster.neighbours:
        for node in neighbour.nodes:
            by_node.setdefault(node, []).append(neighbour)

    shared = [seat for seat in seats if seat.node in by_node]
    newcomers = {
        candidate.name: _newcomer(candidate, policy_input, draft) for candidate in policy_input.candidates if shared
    }

    troubles: dict[str, str] = {}
    bytes_left = MOST_BYTES + 1  # each name has a comma but one
    weighed = 0
    for seat in shared:
        weighed += len(by_node[seat.node])
        if bytes_left < 0 or weighed > MOST_WEIGHED:
            break
        why = trouble(newcomers[seat.candidate.name], by_node[seat.node], policy_input.rules)
        if why:
            troubles[seat.node] = why
            bytes_left -= len(seat.node) + 1
    return troubles


def _newcomer(candidate: Candidate, policy_input: PolicyInput, draft: Decision) -> Neighbour:
    """Return the job of *draft* as the neighbour that it would be at *candidate*."""
    # Its need on the share where that has a price; a rule of the site's own may have chosen another size.
    share_percent = draft.request.mps_thread_percent or 0
    shares = offers((candidate,), policy_input.request, policy_input.rules.sharing)
    on_share = next((need_on(offer) for offer in shares if offer.share_percent == share_percent), candidate.need)

    return Neighbour(
        nodes=(),
        share_percent=share_percent,
        thread_percent=draft.request.thread_cap_percent or share_percent,
        need=on_share,
        workload=policy_input.workload,
        user=policy_input.submitter.user,
    )


def trouble(newcomer: Neighbour, there: Iterable[Neighbour], rules: Rules) -> str:
    """Return the trouble that a share for *newcomer* might make on a node, as a clause; empty where none.

    Args:
        newcomer: The job in question.
        there: The jobs on that node's GPUs; those count that leave room for *newcomer*.
        rules: The site's.
    """
    partners = [each for each in there if each.share_percent + newcomer.share_percent <= WHOLE_PERCENT]
    if not partners:
        return ""
    if (
        not rules.sharing.across_users
        and newcomer.user
        and any(each.user not in ("", newcomer.user) for each in partners)
    ):
        return OF_ANOTHER_USER
    worst = _stretch(newcomer, partners, lambda interval: interval.high)
    company = [(newcomer, partners), *((each, [newcomer]) for each in partners)]

    # A latency is promised at the pessimistic end of the needs. Beside training it has to hold with a longer step, for
    # a request waits for kernels that no percentage divides.
    margin = min(rules.slo.latency_margin, 1.0)
    for job, others in company:
        slo = job.workload.slo
        if slo is None or job.workload.mode != "infer" or not rules.slo.enabled:
            continue
        stretch = worst
        if any(each.workload.mode == "train" for each in others):
            stretch = max(worst, 1 / margin if margin > 0 else math.inf)
        if stretch > 1 and not latency_s(job.need.step_time_s.high * stretch, job.workload) <= slo.latency_s:
            return BROKEN_PROMISE

    # A slowdown is accepted as expected; where even the worst sum is within the GPU, so is the expected one.
    expected = _stretch(newcomer, partners, lambda interval: interval.value) if worst > 1 else 1.0
    for job, _ in company if expected > 1 else ():
        within, slowdown = limits(rules.sharing, job.workload.slowdown), job.need.slowdown
        if not (slowdown.value * expected <= within.expected and slowdown.high * expected <= within.worst):
            return TOO_BUSY
    return ""


def _stretch(newcomer: Neighbour, partners: Sequence[Neighbour], end: _End) -> float:
    """Return how many times as long steps take, by the scarcest resource; at least 1.

    Which jobs of a node are on one GPU is not known, so the worst company that has room beside *newcomer* is assumed:
    the fractional knapsack, in which the job with the largest need per share goes first, and the last one counts in
    part, so that one more job never makes it less.
    """
    stretch = 1.0
    needs: tuple[_Need, ...] = (_threads, lambda job, end: end(job.need.dram_activity))
    for need in needs:
        total, room = need(newcomer, end), WHOLE_PERCENT - newcomer.share_percent
        densities = [(need(job, end) / job.share_percent, job.share_percent) for job in partners]
        for density, share in sorted(densities, reverse=True):
            total += density * min(share, room)
            room -= min(share, room)
        stretch = max(stretch, total)
    return stretch


def _threads(job: Neighbour, end: _End) -> float:
    """Return the part of the GPU's SMs that *job* keeps active; its need on a share counts the share's own SMs."""
    part, active = job.thread_percent / WHOLE_PERCENT, end(job.need.sm_activity)
    return active * part if job.need.share_percent < WHOLE_PERCENT else min(active, part)
