"""Which nodes a share is kept off, and where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpusage.policies.neighbours import BROKEN_PROMISE, MOST_WEIGHED, TOO_BUSY, decide_veto, trouble
from gpusage.predictors.intervals import exact_interval
from gpusage.service.reservations import PendingReservations, Reservation
from gpusage_hooks import samples
from gpusage_hooks.types import (
    Decision,
    Interval,
    Neighbour,
    NodeKind,
    PolicyInput,
    Room,
    Rules,
    SharingRules,
    Slo,
    SloRules,
    Submitter,
    Workload,
)

ROOM = Room(share_percent=100, cpu_count=8)
PROMISED = Neighbour(
    nodes=("n1",),
    share_percent=25,
    thread_percent=25,
    need=samples.need(samples.gpus()[0], step_time_s=0.01),
    workload=Workload(mode="infer", slo=Slo(latency_s=0.015)),
)
"""Alone it keeps its promise; beside training, with a step of twice the length, it would not."""


def shared(*nodes: str, **request: object) -> tuple[PolicyInput, Decision]:
    """Return a training job on half a GPU of one type, and its case: each of *nodes* has room for it."""
    policy_input = samples.policy_input(memory_gib=1.0)
    kind = NodeKind(cpu_count=8, rooms=tuple(replace(ROOM, node=name) for name in nodes))
    candidate = replace(policy_input.candidates[0], pool=replace(policy_input.candidates[0].pool, node_kinds=(kind,)))
    cluster = replace(policy_input.cluster, pools=(candidate.pool,), neighbours=(PROMISED,))
    policy_input = replace(policy_input, candidates=(candidate,), cluster=cluster, workload=Workload())
    shared_request = replace(policy_input.request, gpu_count=0, mps_thread_percent=50, **request)  # type: ignore[arg-type]
    return policy_input, replace(samples.draft(policy_input), request=shared_request, reasons=("cheap",))


def avoided(policy_input: PolicyInput, draft: Decision) -> tuple[str, ...]:
    decision = decide_veto(policy_input, draft)
    return decision.request.avoided_nodes if decision else ()


def test_a_job_is_kept_off_a_promise_that_it_would_break_and_told() -> None:
    policy_input, draft = shared("n1", "n2")
    decision = decide_veto(policy_input, draft)
    assert decision is not None
    assert decision.request == replace(draft.request, avoided_nodes=("n1",))
    assert decision.reasons == ("cheap", "avoids n1, where a promised latency might not hold")


def test_it_is_kept_off_another_users_share_unless_the_site_wants_that() -> None:
    policy_input, draft = shared("n1", "n2")
    harmless = replace(PROMISED, workload=Workload(), user="1000", need=samples.need(samples.gpus()[0]))
    cluster = replace(policy_input.cluster, neighbours=(harmless,))

    def by(user: str, *, across_users: bool = False) -> tuple[str, ...]:
        rules = Rules(sharing=SharingRules(across_users=across_users))
        by_user = replace(policy_input, cluster=cluster, rules=rules, submitter=Submitter(fields={"user": user}))
        decision = decide_veto(by_user, draft)
        assert decision is None or decision.request.keeps_apart
        return decision.request.avoided_nodes if decision else ()

    assert by("1001") == ("n1",)
    assert by("1000") == by("") == by("1001", across_users=True) == ()


def test_it_waits_for_no_other_node() -> None:
    assert avoided(*shared("n1")) == ()
    policy_input, draft = shared("n1", "n2")
    assert avoided(replace(policy_input, cluster=replace(policy_input.cluster, releases=False)), draft) == ()


@pytest.mark.parametrize("room", [Room(share_percent=40, cpu_count=8), Room(share_percent=100)])
def test_another_node_must_have_room_for_this_very_job(room: Room) -> None:
    policy_input, draft = shared("n1")
    (kind,) = policy_input.candidates[0].pool.node_kinds
    kind = replace(kind, rooms=(*kind.rooms, replace(room, node="n2")))
    pool = replace(policy_input.candidates[0].pool, node_kinds=(kind,))
    assert avoided(replace(policy_input, candidates=(replace(policy_input.candidates[0], pool=pool),)), draft) == ()


def test_a_node_that_a_job_of_the_same_burst_took_is_no_way_out() -> None:
    policy_input, draft = shared("n1", "n2")
    (pool,) = policy_input.cluster.pools
    reservation = Reservation(
        manager=policy_input.cluster.manager, site_types=(pool.site_type,), share_percent=75, avoided_nodes=("n1",)
    )
    pending = PendingReservations()
    pending.add(reservation)
    cluster = pending.remaining_capacity(policy_input.cluster)
    candidate = replace(policy_input.candidates[0], pool=cluster.pools[0])
    assert avoided(replace(policy_input, cluster=cluster, candidates=(candidate,)), draft) == ()


def test_a_node_that_has_no_room_need_not_be_avoided() -> None:
    assert avoided(*shared("n2", "n3")) == ()


def test_nodes_that_its_user_excludes_stay_and_are_no_way_out() -> None:
    assert avoided(*shared("n1", "n2", "n3", avoided_nodes=("n2",))) == ("n2", "n1")
    assert avoided(*shared("n1", "n2", avoided_nodes=("n2",))) == ()


@pytest.mark.parametrize(
    "request_of",
    [{"steerable": False}, {"mps_thread_percent": None}, {"required_gpus": ("another",)}, {"preferred_gpus": ("x",)}],
)
def test_a_job_that_cannot_be_kept_off_is_not(request_of: dict[str, object]) -> None:
    """The last one prefers a type of which no other node has room: a preference must not become a demand."""
    policy_input, draft = shared("n1", "n2")
    assert avoided(policy_input, replace(draft, request=replace(draft.request, **request_of))) == ()  # type: ignore[arg-type]


def test_each_of_its_partitions_has_another_node() -> None:
    policy_input, draft = shared("n1", "n2")
    (kind,) = policy_input.candidates[0].pool.node_kinds
    first, second = (replace(kind, rooms=(room,)) for room in kind.rooms)
    kinds = (replace(first, partitions=("a", "b")), replace(second, partitions=("a",)))
    policy_input = replace(
        policy_input,
        candidates=(
            replace(policy_input.candidates[0], pool=replace(policy_input.candidates[0].pool, node_kinds=kinds)),
        ),
    )
    for partitions, expected in ((("a",), ("n1",)), (("a", "b"), ())):
        named = replace(policy_input, request=replace(policy_input.request, partitions=partitions))
        assert avoided(named, replace(draft, request=replace(draft.request, partitions=partitions))) == expected


def test_a_site_may_do_without() -> None:
    policy_input, draft = shared("n1", "n2")
    assert avoided(replace(policy_input, rules=Rules(sharing=SharingRules(keep_apart=False))), draft) == ()


def test_more_names_than_a_mark_holds_are_not_avoided() -> None:
    names = tuple(f"node-with-a-long-name-{number:02}" for number in range(12))
    policy_input, draft = shared("n2", *names)
    everywhere = replace(
        policy_input, cluster=replace(policy_input.cluster, neighbours=(replace(PROMISED, nodes=names),))
    )
    assert avoided(everywhere, draft) == ()
    few = replace(policy_input, cluster=replace(policy_input.cluster, neighbours=(replace(PROMISED, nodes=names[:5]),)))
    decision = decide_veto(few, draft)
    assert decision is not None
    assert "-00, node-with-a-long-name-01, node-with-a-long-name-02 and 2 more, where" in decision.reasons[-1]


@pytest.mark.parametrize(("number", "expected"), [(0, ("n0",)), (2 * MOST_WEIGHED - 1, ())])
def test_on_a_large_cluster_only_so_many_neighbours_are_weighed(
    number: int, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision must be there within milliseconds; of the nodes that are looked at, bad ones are avoided."""
    weighed: list[int] = []

    def counted(newcomer: Neighbour, there: Sequence[Neighbour], rules: Rules) -> str:
        weighed.append(len(there))
        return trouble(newcomer, there, rules)

    monkeypatch.setattr("gpusage.policies.neighbours.trouble", counted)
    names = tuple(f"n{each}" for each in range(2 * MOST_WEIGHED))
    policy_input, draft = shared(*names)
    harmless = replace(PROMISED, nodes=names, workload=Workload())
    neighbours = (harmless, replace(PROMISED, nodes=(names[number],)))
    assert (
        avoided(replace(policy_input, cluster=replace(policy_input.cluster, neighbours=neighbours)), draft) == expected
    )
    assert sum(weighed) <= MOST_WEIGHED


# What jobs on one GPU take of it together; the sums are in the comments.

GPU = samples.gpus()[0]
RULES = Rules()


def job(share: int = 50, *, dram: float = 0.1, sm: float = 0.2, threads: int = 0, **changes: object) -> Neighbour:
    """Return a training job alone on a share, where a step takes 10 ms and costs nothing."""
    need = replace(
        samples.need(GPU),
        share_percent=share,
        dram_activity=exact_interval(dram),
        sm_activity=exact_interval(sm),
        gpu_utilization=exact_interval(0.2),
        step_time_s=exact_interval(0.01),
    )
    plain = Neighbour(
        nodes=("n1",), share_percent=share, thread_percent=threads or share, need=need, workload=Workload()
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def serving(latency_s: float) -> Workload:
    return Workload(mode="infer", slo=Slo(latency_s=latency_s))


def test_nobody_is_hurt_by_nobody_nor_by_who_leaves_no_room() -> None:
    busy = job(75, dram=1.0)
    assert trouble(busy, [], RULES) == ""
    assert trouble(busy, [busy], RULES) == ""  # 75 and 75 % are never on one GPU


@pytest.mark.parametrize(
    ("dram", "expected"),
    [
        (0.5, ""),  # 0.7 + 0.5: steps take 1.2 times as long, and 1.25 is accepted
        (0.6, TOO_BUSY),  # 1.3
    ],
)
def test_what_all_need_of_the_memory_bandwidth_slows_all(dram: float, expected: str) -> None:
    assert trouble(job(dram=0.7), [job(dram=dram)], RULES) == expected
    assert trouble(job(dram=dram), [job(dram=0.7)], RULES) == expected


def test_either_side_may_accept_more_or_less() -> None:
    patient = Workload(slowdown=2.0)
    newcomer, there = job(dram=0.7), job(dram=0.6)
    assert trouble(replace(newcomer, workload=patient), [there], RULES) == TOO_BUSY
    assert trouble(replace(newcomer, workload=patient), [replace(there, workload=patient)], RULES) == ""


def test_a_share_that_is_dear_already_has_less_to_spare() -> None:
    """1.2 times as long beside a price of 1.1 is 1.32; and 1.45 at the pessimistic end becomes 1.74."""
    for slowdown in (Interval(value=1.1, low=1.0, high=1.1), Interval(value=1.0, low=1.0, high=1.45)):
        dear = job(dram=0.7)
        dear = replace(dear, need=replace(dear.need, slowdown=slowdown))
        assert trouble(dear, [job(dram=0.5)], RULES) == TOO_BUSY


def test_threads_are_short_only_where_jobs_may_use_more_than_their_shares() -> None:
    """Both keep all SMs busy that they may use: 50 % each, or 100 % each."""
    assert trouble(job(sm=1.0), [job(sm=1.0)], RULES) == ""
    assert trouble(job(sm=1.0, threads=100), [job(sm=1.0, threads=100)], RULES) == TOO_BUSY
    whole = job()
    whole = replace(whole, need=replace(whole.need, share_percent=100, sm_activity=exact_interval(0.9)))
    assert trouble(whole, [whole], RULES) == ""  # of the whole GPU it would use 0.9, and has half


@pytest.mark.parametrize(("latency_s", "expected"), [(0.019, BROKEN_PROMISE), (0.021, "")])
def test_beside_training_a_promise_must_hold_with_a_step_of_twice_the_length(latency_s: float, expected: str) -> None:
    promised = job(25, workload=serving(latency_s))
    assert trouble(promised, [job()], RULES) == expected
    assert trouble(job(), [promised], RULES) == expected
    assert trouble(promised, [promised], RULES) == ""
    assert trouble(promised, [job()], Rules(slo=SloRules(enabled=False))) == ""


def test_a_promise_counts_the_high_end_of_what_is_short() -> None:
    """0.4 + 0.4 as expected; 0.8 + 0.8 at worst, so 10 ms may become 16."""
    answering = job(workload=serving(0.015))
    uncertain = replace(answering.need, dram_activity=Interval(value=0.4, low=0.1, high=0.8))
    answering = replace(answering, need=uncertain)
    assert trouble(answering, [answering], RULES) == BROKEN_PROMISE
    generous = replace(answering, workload=serving(0.017))
    assert trouble(generous, [generous], RULES) == ""


def test_of_many_jobs_the_worst_count_for_which_there_is_room() -> None:
    """Beside 50 %: one of 25 % with 0.5 and one with 0.4, which is 0.2 + 0.9; with the third it is no more."""
    third = [job(25, dram=dram) for dram in (0.4, 0.3, 0.5)]
    assert trouble(job(dram=0.2), third, RULES) == ""
    assert trouble(job(dram=0.4), third, RULES) == TOO_BUSY  # 1.3
