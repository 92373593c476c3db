"""What holds of every job that is kept off nodes, whoever runs there."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpusage.policies.neighbours import MOST_BYTES, decide_veto, trouble
from gpusage_hooks import samples
from gpusage_hooks.types import Interval, Neighbour, NodeKind, PolicyInput, Room, Rules, SharingRules, Slo, Workload

COUNTS = st.integers(0, 2)
NODES = ("n1", "n2", "n3", "n4")
RULES = st.builds(
    Rules,
    sharing=st.builds(SharingRules, maximum_slowdown=st.floats(1, 2)),
)
ACTIVITY = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(sorted)


def interval(ends: list[float]) -> Interval:
    return Interval(low=ends[0], value=ends[1], high=ends[2])


@st.composite
def neighbours(draw: st.DrawFn, nodes: tuple[str, ...] = NODES) -> Neighbour:
    share = draw(st.integers(1, 100))
    slo = draw(st.none() | st.builds(Slo, latency_s=st.floats(1e-3, 1)))
    need = replace(
        samples.need(samples.gpus()[0]),
        share_percent=draw(st.sampled_from((share, 100))),
        sm_activity=interval(draw(ACTIVITY)),
        dram_activity=interval(draw(ACTIVITY)),
        gpu_utilization=interval(draw(ACTIVITY)),
    )
    return Neighbour(
        nodes=(draw(st.sampled_from(nodes)),),
        share_percent=share,
        thread_percent=draw(st.integers(share, 100)),
        need=need,
        workload=Workload(mode="infer" if slo else "train", slo=slo, slowdown=draw(st.none() | st.floats(1, 3))),
    )


@st.composite
def cases(draw: st.DrawFn) -> PolicyInput:
    policy_input = samples.policy_input(memory_gib=1.0)
    candidates = []
    for candidate in policy_input.candidates:
        rooms = st.builds(Room, node=st.sampled_from(NODES), share_percent=st.integers(1, 100), cpu_count=COUNTS)
        kind = NodeKind(
            cpu_count=draw(COUNTS),
            rooms=tuple(draw(st.lists(rooms, unique_by=lambda room: room.node))),
            partitions=draw(st.sampled_from(((), ("a",)))),
        )
        candidates.append(replace(candidate, pool=replace(candidate.pool, node_kinds=(kind,))))
    there = tuple(draw(st.lists(neighbours(), max_size=6)))
    cluster = replace(policy_input.cluster, pools=tuple(candidate.pool for candidate in candidates), neighbours=there)
    request = replace(policy_input.request, partitions=draw(st.sampled_from(((), ("a",), ("a", "b")))))
    newcomer = draw(neighbours())
    return replace(
        policy_input,
        candidates=tuple(candidates),
        cluster=cluster,
        request=request,
        workload=newcomer.workload,
        rules=draw(RULES),
    )


@settings(max_examples=300)  # one in sixteen avoids nodes
@given(cases(), st.integers(1, 99), st.sampled_from(((), ("sample-old",))), st.booleans())
def test_a_job_that_avoids_nodes_could_start_on_another_one_now(
    policy_input: PolicyInput,
    share: int,
    types: tuple[str, ...],
    is_bound: bool,  # drawn
) -> None:
    """Of a type that it may have, large enough, and in each of its partitions."""
    gpu_types = {"required_gpus": types} if is_bound else {"preferred_gpus": types}
    request = replace(policy_input.request, gpu_count=0, mps_thread_percent=share, **gpu_types)
    decision = decide_veto(policy_input, replace(samples.draft(policy_input), request=request))
    if decision is None:
        return
    avoided = {*decision.request.avoided_nodes}
    assert replace(decision.request, avoided_nodes=()) == request
    assert avoided
    assert avoided <= {name for each in policy_input.cluster.neighbours for name in each.nodes}
    assert len(",".join(decision.request.avoided_nodes)) <= MOST_BYTES
    for partition in policy_input.request.partitions or ("",):
        assert any(
            room.node not in avoided
            and room.share_percent >= share
            and room.cpu_count >= 1
            and kind.cpu_count >= 1
            and (not partition or not kind.partitions or partition in kind.partitions)
            for candidate in policy_input.candidates
            if not types or candidate.name in types
            for kind in candidate.pool.node_kinds
            for room in kind.rooms
        )


@given(cases(), st.integers(1, 99))
def test_without_neighbours_no_node_is_avoided(policy_input: PolicyInput, share: int) -> None:
    alone = replace(policy_input, cluster=replace(policy_input.cluster, neighbours=()))
    request = replace(policy_input.request, gpu_count=0, mps_thread_percent=share)
    assert decide_veto(alone, replace(samples.draft(policy_input), request=request)) is None


@given(neighbours(), st.lists(neighbours(), max_size=5), neighbours(), RULES)
def test_one_more_neighbour_never_takes_a_trouble_away(
    newcomer: Neighbour, there: list[Neighbour], more: Neighbour, rules: Rules
) -> None:
    assert trouble(newcomer, [], rules) == ""
    if trouble(newcomer, there, rules):
        assert trouble(newcomer, [*there, more], rules)


@given(neighbours(), st.lists(neighbours(), min_size=1, max_size=5), st.floats(0, 1), RULES)
def test_a_larger_need_never_takes_a_trouble_away(
    newcomer: Neighbour, there: list[Neighbour], more: float, rules: Rules
) -> None:
    first, *others = there
    dram = first.need.dram_activity
    larger = Interval(low=dram.low, value=dram.value + more, high=dram.high + more)
    grown = replace(first, need=replace(first.need, dram_activity=larger))
    if trouble(newcomer, there, rules):
        assert trouble(newcomer, [grown, *others], rules)
