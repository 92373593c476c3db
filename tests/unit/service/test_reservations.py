"""What a cluster has left of what was seen."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpusage.service.reservations import START_LIMIT_S, PendingReservations, Reservation
from gpusage_hooks.types import Cluster, GpuPool, NodeKind, Room

NEW = GpuPool(gpu=None, site_type="new", gpu_count=4, free_gpu_count=2)
OLD = replace(NEW, site_type="old")
CLUSTER = Cluster(manager="slurm", version="", pools=(NEW, OLD))
QUARTER = Reservation(manager="slurm", site_types=("new",), share_percent=25)


def left(*reservations: Reservation, cluster: Cluster = CLUSTER) -> Cluster:
    """Return what *reservations* leave."""
    pending = PendingReservations()
    for reservation in reservations:
        pending.add(reservation)
    return pending.remaining_capacity(cluster)


@pytest.mark.parametrize(
    ("count", "free", "part"),
    [(1, 1, 75), (4, 1, 0), (5, 0, 75), (7, 0, 25), (8, 0, 0), (20, 0, 0)],
)
def test_shares_fill_one_gpu_after_the_other(count: int, free: int, part: int) -> None:
    """Four quarters a GPU; the other GPU type has what it had."""
    new, old = left(*[QUARTER] * count).pools
    assert (new.free_gpu_count, new.free_share_percent) == (free, part)
    assert old is OLD


def test_a_gpu_that_is_shared_already_is_filled_first() -> None:
    """Of its free half two quarters leave nothing, and the free GPUs are free still."""
    shared = replace(CLUSTER, pools=(replace(NEW, free_share_percent=50),))
    (new,) = left(QUARTER, QUARTER, cluster=shared).pools
    assert (new.free_gpu_count, new.free_share_percent) == (2, 0)


def test_shares_of_which_no_number_fills_a_gpu_leave_the_rest() -> None:
    """Three thirds of 33 % on a GPU; 75 % and 75 % are one on each."""
    (new, _) = left(*[replace(QUARTER, share_percent=33)] * 4).pools
    assert (new.free_gpu_count, new.free_share_percent) == (0, 67)
    (new, _) = left(*[replace(QUARTER, share_percent=75)] * 2).pools
    assert (new.free_gpu_count, new.free_share_percent) == (0, 25)


def test_a_share_that_may_start_on_several_types_is_claimed_on_each() -> None:
    """Nobody knows on which it will."""
    pools = left(replace(QUARTER, site_types=("new", "old"))).pools
    assert [pool.free_gpu_count for pool in pools] == [1, 1]


def test_each_kind_of_nodes_has_less_as_well() -> None:
    """One has two free GPUs, one the half of a shared one, and of one nothing is known."""
    kinds = (
        NodeKind(room=Room(share_percent=100, cpu_count=8), free_gpu_count=2),
        NodeKind(room=Room(share_percent=50, cpu_count=4)),
        NodeKind(),
    )
    cluster = replace(CLUSTER, pools=(replace(NEW, node_kinds=kinds),))
    (new,) = left(*[QUARTER] * 5, cluster=cluster).pools
    assert new.node_kinds == (
        NodeKind(room=Room(share_percent=75, cpu_count=8)),
        NodeKind(room=Room(share_percent=0, cpu_count=4)),
        NodeKind(),
    )


def test_another_managers_cluster_is_as_it_was() -> None:
    """Though it calls its GPUs the same."""
    other = replace(CLUSTER, manager="yarn")
    assert left(QUARTER, cluster=other) is other


def test_a_job_that_did_not_get_its_share_takes_no_room() -> None:
    """Its answer came too late."""
    reservations = PendingReservations()
    reservations.add(QUARTER)
    reservations.withdraw(QUARTER)
    reservations.withdraw(QUARTER)
    reservations.withdraw(None)
    reservations.add(None)
    assert reservations.remaining_capacity(CLUSTER) is CLUSTER


def test_an_observation_ends_the_claims_that_it_has_seen() -> None:
    """Those on its own manager, made long enough before it began for the jobs to have started."""
    reservations, now_s = PendingReservations(), time.monotonic()
    reservations.add(QUARTER)
    reservations.forget("slurm", now_s)
    reservations.forget("yarn", now_s + START_LIMIT_S + 5)
    assert reservations.remaining_capacity(CLUSTER) is not CLUSTER
    reservations.forget("slurm", now_s + START_LIMIT_S + 5)
    assert reservations.remaining_capacity(CLUSTER) is CLUSTER


def test_an_array_claims_a_share_for_each_of_its_tasks() -> None:
    """Five quarters fill one of the two GPUs, and a quarter of the other; more than there is leaves nothing."""
    (new, _) = left(replace(QUARTER, count=5)).pools
    assert (new.free_gpu_count, new.free_share_percent) == (0, 75)
    (new, _) = left(replace(QUARTER, count=1000)).pools
    assert (new.free_gpu_count, new.free_share_percent) == (0, 0)


def rooms_left(*reservations: Reservation) -> dict[str, int]:
    """Return the share that *reservations* leave on each of three nodes, of which one is half taken."""
    rooms = tuple(Room(share_percent=part, node=node) for node, part in (("n1", 50), ("n2", 100), ("n3", 100)))
    kind = NodeKind(room=Room(share_percent=100), rooms=rooms, free_gpu_count=2)
    (new,) = left(*reservations, cluster=replace(CLUSTER, pools=(replace(NEW, node_kinds=(kind,)),))).pools
    return {room.node: room.share_percent for room in new.node_kinds[0].rooms}


def test_each_node_has_less_as_well_those_with_most_room_first() -> None:
    """A job of the same burst that is kept off other nodes must not count on one that is taken."""
    assert rooms_left() == {"n1": 50, "n2": 100, "n3": 100}
    assert rooms_left(QUARTER) == {"n1": 50, "n2": 75, "n3": 100}
    assert rooms_left(*[QUARTER] * 2) == {"n1": 50, "n2": 75, "n3": 75}
    assert rooms_left(replace(QUARTER, count=7)) == {"n1": 0, "n2": 25, "n3": 50}
    assert rooms_left(replace(QUARTER, count=1000)) == {"n1": 0, "n2": 0, "n3": 0}


def test_a_share_starts_on_no_node_that_it_avoids_or_that_is_too_full() -> None:
    most = replace(QUARTER, share_percent=75, avoided_nodes=("n2",))
    assert rooms_left(most) == {"n1": 50, "n2": 100, "n3": 25}
    assert rooms_left(most, most, most) == {"n1": 50, "n2": 100, "n3": 0}


def test_a_kind_of_claims_that_was_seen_keeps_its_nodes_however_many_others_there_are() -> None:
    """Seen again beside 63 others, it counted as if it might start anywhere."""
    seen = replace(QUARTER, avoided_nodes=("n2", "n3"))
    others = [replace(QUARTER, avoided_nodes=("n1", "n2", "n3", f"n{number}")) for number in range(4, 67)]
    again = replace(seen, site_types=("new", "old"))
    assert rooms_left(seen, *others, again) == rooms_left(seen, seen) == {"n1": 0, "n2": 100, "n3": 100}
