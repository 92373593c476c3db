"""What a cluster has left of what was seen."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpusage.service.ledger import REMEMBERED_OF_ONE, REMEMBERED_RIVALS, START_LIMIT_S, Claim, Ledger
from gpusage.verdict import Verdict
from gpusage_hooks.types import (
    Cluster,
    Code,
    Decision,
    GpuPool,
    GpuRequest,
    Job,
    NodeKind,
    Rendered,
    Room,
    Submission,
)

NEW = GpuPool(gpu=None, site_type="new", gpu_count=4, free_gpu_count=2)
OLD = replace(NEW, site_type="old")
CLUSTER = Cluster(manager="slurm", version="", pools=(NEW, OLD))
QUARTER = Claim(manager="slurm", site_types=("new",), share_percent=25)


def left(*claims: Claim, cluster: Cluster = CLUSTER) -> Cluster:
    """Return what *claims* leave."""
    ledger = Ledger()
    for claim in claims:
        ledger.add(claim)
    return ledger.left_of(cluster)


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
    ledger = Ledger()
    ledger.add(QUARTER)
    ledger.withdraw(QUARTER)
    ledger.withdraw(QUARTER)
    ledger.withdraw(None)
    ledger.add(None)
    assert ledger.left_of(CLUSTER) is CLUSTER


def test_an_observation_ends_the_claims_that_it_has_seen() -> None:
    """Those on its own manager, made long enough before it began for the jobs to have started."""
    ledger, now_s = Ledger(), time.monotonic()
    ledger.add(QUARTER)
    ledger.forget("slurm", now_s)
    ledger.forget("yarn", now_s + START_LIMIT_S + 5)
    assert ledger.left_of(CLUSTER) is not CLUSTER
    ledger.forget("slurm", now_s + START_LIMIT_S + 5)
    assert ledger.left_of(CLUSTER) is CLUSTER


def test_an_array_claims_a_share_for_each_of_its_tasks() -> None:
    """Five quarters fill one of the two GPUs, and a quarter of the other; more than there is leaves nothing."""
    (new, _) = left(replace(QUARTER, count=5)).pools
    assert (new.free_gpu_count, new.free_share_percent) == (0, 75)
    (new, _) = left(replace(QUARTER, count=1000)).pools
    assert (new.free_gpu_count, new.free_share_percent) == (0, 0)


def verdict(step_s: float, *, manager: str = "slurm", dry_run: bool = False) -> Verdict:
    """Return one on a job that may choose between two types, or on none where *step_s* is 0."""
    submission, request = Submission(manager=manager), GpuRequest(gpu_count=1)
    times_s = {"new": step_s, "old": 2 * step_s} if step_s else {}
    return Verdict(
        submission=submission,
        job=Job(submission=submission, request=request, request_text="", dry_run=dry_run),
        decision=Decision(code=Code.KEEP, request=request, reasons=(), plugin="test", step_times_s=times_s),
        rendered=Rendered(before="", after="", fields={}),
        mode="enforce",
    )


def test_the_jobs_of_late_that_may_choose_are_remembered_by_manager() -> None:
    ledger = Ledger()
    for each in (None, verdict(0), verdict(1, manager="other"), verdict(2, dry_run=True)):
        ledger.remember(each, {})
    assert ledger.left_of(CLUSTER) is CLUSTER
    for second in range(1, REMEMBERED_RIVALS + 3):
        ledger.remember(verdict(second), {"user": f"user{second}"})
    rivals = ledger.left_of(CLUSTER).rivals
    assert len(rivals) == REMEMBERED_RIVALS
    assert (rivals[0], rivals[-1]) == ({"new": 3, "old": 6}, {"new": 66, "old": 132})


def test_one_user_s_many_jobs_push_out_nobody_else_s() -> None:
    """Also where the verdict was given on another user's job."""
    ledger = Ledger()
    ledger.remember(verdict(1), {"user": "ann"})
    for _ in range(2 * REMEMBERED_RIVALS):
        ledger.remember(verdict(2), {"user": "bob"})
    rivals = ledger.left_of(CLUSTER).rivals
    assert len(rivals) == 1 + REMEMBERED_OF_ONE
    assert rivals[0] == {"new": 1, "old": 2}
