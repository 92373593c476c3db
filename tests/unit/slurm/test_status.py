"""What `gpusage slurm status` says of a cluster."""

from __future__ import annotations

from dataclasses import asdict, replace

from gpusage.cli.status import unshared_reasons
from gpusage_hooks.types import Cluster, GpuPool
from gpusage_slurm.actions import describe_status

POOL = GpuPool(gpu="v100", site_type="v100", gpu_count=2, free_gpu_count=1, mps_per_gpu=100, feature="v100")


def described(pool: GpuPool) -> str:
    cluster = Cluster(
        manager="slurm", version="24.11", pools=(pool,), unshared={"partition=whole": "partition whole is so"}
    )
    return describe_status({"clusters": {"slurm": {"age_s": 1, **asdict(cluster)}}})


def test_a_type_is_shown_with_its_feature_and_whether_that_can_hold_a_share() -> None:
    assert "only theirs" in described(POOL)
    shown = described(replace(POOL, exact_feature="v100"))
    assert "1 of 2 free, shared in 100 units, memory limited by cap, feature v100\n" in shown
    assert "by cap (no cgroup v2), feature" in described(replace(POOL, why_no_wall="no cgroup v2"))
    assert "8 shards a GPU, which limit nothing" in described(replace(POOL, mps_per_gpu=None, shards_per_gpu=8))
    assert "only theirs" not in described(replace(POOL, site_type="", feature=None))


def test_partitions_that_share_nothing_are_shown_with_their_reasons() -> None:
    assert "not shared: partition whole is so" in described(POOL)


def test_of_many_reasons_each_is_shown_once_and_the_others_are_counted() -> None:
    """A site may limit hundreds of users one by one."""
    unshared = {f"account=a user={number}": f"because of {number // 2}" for number in range(40)}
    assert [*unshared_reasons(unshared)][-2:] == ["because of 11 (2 places)", "8 more reasons (--json has all)"]
    assert [*unshared_reasons(dict.fromkeys(unshared, "why"))] == ["why (40 places)"]
