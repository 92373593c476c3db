"""What a GPU is billed, and by which weight a share costs its part of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage_hooks.types import Cluster, GpuPool
from gpusage_slurm.cluster.billing import with_billing_weights, wrong_weights

POOL = GpuPool(
    gpu="v100-sxm2-16gb", site_type="V100", gpu_count=2, free_gpu_count=2, mps_per_gpu=100, partitions=("p", "q")
)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("CPU=1.0,Mem=0.25G,GRES/gpu=100", "", 100.0),
        ("GRES/gpu=100,GRES/gpu:v100=40", "CPU=1", 40.0),  # that of its own type
        ("GRES/gpu:v100=40", "GRES/gpu=60", 60.0),  # the dearest partition
        ("GRES/gpu:h100=80", "GRES/gpu=0", None),
        ("GRES/gpu=1e9,CPU=1", "GRES/gpu=9G", None),
        ("", "", None),
    ],
)
def test_a_gpu_is_billed_by_its_own_type_in_its_dearest_partition(
    first: str, second: str, expected: float | None
) -> None:
    partitions = [
        {"PartitionName": "p", "TRESBillingWeights": first},
        {"PartitionName": "q", "TRESBillingWeights": second},
        {"PartitionName": "others", "TRESBillingWeights": "GRES/gpu=900"},
    ]
    cluster = with_billing_weights(Cluster(manager="slurm", version="", pools=(POOL,)), partitions)
    assert [pool.billing_weight for pool in cluster.pools] == [expected]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("CPU=1.0,Mem=0.25G,GRES/gpu=100", ["GRES/mps=1 in partition p"]),  # 100 / 100 units
        ("CPU=1.0,GRES/gpu=100,GRES/mps=1", []),
        ("GRES/gpu=50,GRES/mps=1", ["GRES/mps=0.5 in partition p"]),  # a share would cost twice its part
        ("GRES/gpu:v100=20,GRES/gpu:h100=80", ["GRES/mps=0.8 in partition p"]),
        ("CPU=1.0", []),
        ("", []),
    ],
)
def test_a_share_is_to_be_billed_as_its_part_of_a_gpu(weights: str, expected: list[str]) -> None:
    partition = {"PartitionName": "p", "TRESBillingWeights": weights}
    assert list(wrong_weights([partition], [POOL])) == expected


def test_a_partition_without_shares_needs_no_weight() -> None:
    partition = {"PartitionName": "p", "TRESBillingWeights": "GRES/gpu=100"}
    assert list(wrong_weights([partition], [replace(POOL, mps_per_gpu=None), replace(POOL, partitions=("q",))])) == []


def test_a_partition_that_bills_no_gpu_may_be_told_a_weight() -> None:
    partition = {"PartitionName": "p", "TRESBillingWeights": "CPU=1"}
    assert list(wrong_weights([partition], [POOL], 100.0)) == ["GRES/gpu=100,GRES/mps=1 in partition p"]
