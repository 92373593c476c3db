"""Which nodes a share is kept off, and where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpusage.policies import veto
from gpusage.policies.partners import company
from gpusage.policies.veto import MOST_WEIGHED, decide_veto
from gpusage.service.reservations import Reservation, remaining_capacity
from gpusage_hooks import samples
from gpusage_hooks.types import Decision, Neighbour, NodeKind, PolicyInput, Room, Rules, SharingRules, Slo, Workload

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
    case = samples.case(memory_gib=1.0)
    kind = NodeKind(cpu_count=8, rooms=tuple(replace(ROOM, node=name) for name in nodes))
    place = replace(case.places[0], pool=replace(case.places[0].pool, node_kinds=(kind,)))
    cluster = replace(case.cluster, pools=(place.pool,), neighbours=(PROMISED,))
    case = replace(case, places=(place,), cluster=cluster, workload=Workload())
    shared_request = replace(case.request, gpu_count=0, mps_thread_percent=50, **request)  # type: ignore[arg-type]
    return case, replace(samples.draft(case), request=shared_request, reasons=("cheap",))


def avoided(case: PolicyInput, draft: Decision) -> tuple[str, ...]:
    decision = decide_veto(case, draft)
    return decision.request.avoided_nodes if decision else ()


def test_a_job_is_kept_off_a_promise_that_it_would_break_and_told() -> None:
    case, draft = shared("n1", "n2")
    decision = decide_veto(case, draft)
    assert decision is not None
    assert decision.request == replace(draft.request, avoided_nodes=("n1",))
    assert decision.reasons == ("cheap", "kept off n1, where a promised latency might not hold")


def test_it_waits_for_no_other_node() -> None:
    assert avoided(*shared("n1")) == ()
    case, draft = shared("n1", "n2")
    assert avoided(replace(case, cluster=replace(case.cluster, releases=False)), draft) == ()


@pytest.mark.parametrize("room", [Room(share_percent=40, cpu_count=8), Room(share_percent=100)])
def test_another_node_must_have_room_for_this_very_job(room: Room) -> None:
    case, draft = shared("n1")
    (kind,) = case.places[0].pool.node_kinds
    kind = replace(kind, rooms=(*kind.rooms, replace(room, node="n2")))
    pool = replace(case.places[0].pool, node_kinds=(kind,))
    assert avoided(replace(case, places=(replace(case.places[0], pool=pool),)), draft) == ()


def test_a_node_that_a_job_of_the_same_burst_took_is_no_way_out() -> None:
    case, draft = shared("n1", "n2")
    (pool,) = case.cluster.pools
    reservation = Reservation(
        manager=case.cluster.manager, site_types=(pool.site_type,), share_percent=75, avoided_nodes=("n1",)
    )
    cluster = remaining_capacity(case.cluster, {reservation: 1})
    place = replace(case.places[0], pool=cluster.pools[0])
    assert avoided(replace(case, cluster=cluster, places=(place,)), draft) == ()


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
    case, draft = shared("n1", "n2")
    assert avoided(case, replace(draft, request=replace(draft.request, **request_of))) == ()  # type: ignore[arg-type]


def test_each_of_its_partitions_has_another_node() -> None:
    case, draft = shared("n1", "n2")
    (kind,) = case.places[0].pool.node_kinds
    first, second = (replace(kind, rooms=(room,)) for room in kind.rooms)
    kinds = (replace(first, partitions=("a", "b")), replace(second, partitions=("a",)))
    case = replace(case, places=(replace(case.places[0], pool=replace(case.places[0].pool, node_kinds=kinds)),))
    for partitions, expected in ((("a",), ("n1",)), (("a", "b"), ())):
        named = replace(case, request=replace(case.request, partitions=partitions))
        assert avoided(named, replace(draft, request=replace(draft.request, partitions=partitions))) == expected


def test_a_site_may_do_without() -> None:
    case, draft = shared("n1", "n2")
    assert avoided(replace(case, rules=Rules(sharing=SharingRules(keep_apart=False))), draft) == ()


def test_more_names_than_a_mark_holds_are_not_avoided() -> None:
    names = tuple(f"node-with-a-long-name-{number:02}" for number in range(12))
    case, draft = shared("n2", *names)
    everywhere = replace(case, cluster=replace(case.cluster, neighbours=(replace(PROMISED, nodes=names),)))
    assert avoided(everywhere, draft) == ()
    few = replace(case, cluster=replace(case.cluster, neighbours=(replace(PROMISED, nodes=names[:5]),)))
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
        return company.trouble(newcomer, there, rules)

    monkeypatch.setattr(veto, "trouble", counted)
    names = tuple(f"n{each}" for each in range(2 * MOST_WEIGHED))
    case, draft = shared(*names)
    harmless = replace(PROMISED, nodes=names, workload=Workload())
    neighbours = (harmless, replace(PROMISED, nodes=(names[number],)))
    assert avoided(replace(case, cluster=replace(case.cluster, neighbours=neighbours)), draft) == expected
    assert sum(weighed) <= MOST_WEIGHED
