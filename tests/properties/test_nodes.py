"""Whatever comes and goes: a job is on the fewest nodes on which it can be, and no GPU is given twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.test_simulator import Truth

from gpusage_hooks.types import Cluster
from gpusage_planning.simulator.contract import Backfill, Jobs
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import Fleet, GpuType, Nodes
from gpusage_planning.simulator.policies import Slots
from gpusage_planning.simulator.reservation import reserve, start_s
from simulated import traces

START = 5
SIZES = st.sampled_from([(1, 6), (2, 4), (4, 3), (8, 1)])


def most_packed(empty_counts: Counter[int], count: int, per_node: int) -> bool:
    """Tell, by trying, whether whole nodes and one more have room for *count*."""
    whole, rest = divmod(count, per_node)
    left = sorted(empty_counts.values(), reverse=True)
    return left[:whole] == [per_node] * whole and (rest == 0 or max(left[whole:], default=0) >= rest)


@settings(deadline=None, max_examples=200)
@given(SIZES, st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=40))
def test_a_job_has_room_where_whole_nodes_and_one_more_have_and_is_on_no_more(
    size: tuple[int, int], events: list[tuple[int, bool]]
) -> None:
    per_node, node_count = size
    nodes = Nodes(START, per_node * node_count, per_node)
    empty = {*range(START, START + per_node * node_count)}
    held: list[list[int]] = []
    for count, ends in events:
        if ends and held:
            for gpu in held.pop(count % len(held)):
                nodes.add(gpu)
                empty.add(gpu)
            continue
        counts = Counter(dict.fromkeys(range(node_count), 0))
        counts.update((gpu - START) // per_node for gpu in empty)
        assert nodes.fits(count) == most_packed(counts, count, per_node)
        if nodes.fits(count):
            gpus = nodes.allocate(count)
            assert len({*gpus}) == count
            assert {*gpus} <= empty
            assert len({nodes.node(gpu) for gpu in gpus}) == -(-count // per_node)
            empty -= {*gpus}
            held.append(gpus)


@given(SIZES, st.integers(1, 8), st.sets(st.integers(0, 7)))
def test_a_spread_job_is_on_as_many_nodes_as_can_be(size: tuple[int, int], count: int, busy: set[int]) -> None:
    per_node, node_count = size
    nodes = Nodes(0, per_node * node_count, per_node, spreads=True)
    for gpu in busy:
        if gpu < per_node * node_count:
            nodes.remove(gpu)
    empty = {*range(per_node * node_count)} - busy
    assert nodes.fits(count) == (len(empty) >= count)
    if nodes.fits(count):
        gpus = nodes.allocate(count)
        assert len({*gpus}) == count
        assert {*gpus} <= empty
        most = min(count, len({gpu // per_node for gpu in empty}))
        assert len({gpu // per_node for gpu in gpus}) == most


def fleet_in_nodes(per_node: int, *, spreads: bool = False) -> Fleet:
    """Return eight GPUs of an old type in nodes, and four of a new one."""
    old = GpuType(name="old", gpu_count=8, memory_bytes=1, gpus_per_node=per_node)
    new = GpuType(name="new", gpu_count=4, memory_bytes=1, gpus_per_node=min(per_node, 4))
    return Fleet(types=(old, new), cluster=Cluster(manager="none", version="", pools=()), spreads_jobs=spreads)


@settings(deadline=None, max_examples=100)
@given(traces(), st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from(["none", "reserve", "any"]))
def test_every_job_does_exactly_its_work_on_nodes(jobs: Jobs, per_node: int, spreads: bool, backfill: Backfill) -> None:
    fleet = fleet_in_nodes(per_node, spreads=spreads)
    result = simulate(jobs, fleet, Slots(fleet=fleet, backfill=backfill), Truth())
    expected_s = jobs.work_s / np.where(result.gpu < 8, 1.0, 1.0 + jobs.kind)
    assert np.allclose(result.end_s - result.start_s, expected_s)
    assert result.figures.gpu_hours * 3600 == pytest.approx(float((expected_s * jobs.gpu_count).sum()))
    assert result.figures.fragmentation is None or 0 <= result.figures.fragmentation <= 1


@given(st.lists(st.integers(1, 9).map(float), min_size=8, max_size=8), st.integers(1, 8), st.sampled_from([1, 2, 4, 8]))
def test_a_job_starts_as_foreseen_without_what_is_not_kept(times: list[float], count: int, per_node: int) -> None:
    """Each GPU that is not held can be taken for ever, and each that is held cannot."""
    one = GpuType(name="old", gpu_count=8, gpus_per_node=per_node)
    fleet = Fleet(types=(one,), cluster=Cluster(manager="none", version="", pools=()))
    room_at_s = np.array(times)
    held = reserve(room_at_s, fleet, (0,), count, 0.0)
    assert held.until_s == start_s(room_at_s, fleet, 0, count)
    assert all(times[gpu] <= held.until_s for gpu in held.gpus)
    for gpu in range(8):
        without = room_at_s.copy()
        own = [one for one in held.gpus if one // per_node == gpu // per_node]
        there = [one for one in range(8) if one // per_node == gpu // per_node and times[one] <= held.until_s]
        if gpu in held.gpus:
            without[[gpu, *(one for one in there if one not in own)]] = np.inf
            assert start_s(without, fleet, 0, count) > held.until_s
        else:
            without[gpu] = np.inf
            assert start_s(without, fleet, 0, count) == held.until_s
