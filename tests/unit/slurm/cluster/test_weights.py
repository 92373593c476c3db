"""What one GPU of a pool is billed."""

from __future__ import annotations

import pytest

from gpusage_hooks.types import Cluster, GpuPool
from gpusage_slurm.cluster.weights import with_weights

POOL = GpuPool(gpu=None, site_type="V100", gpu_count=2, free_gpu_count=2, partitions=("p", "q"))


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
    cluster = with_weights(Cluster(manager="slurm", version="", pools=(POOL,)), partitions)
    assert [pool.billing_weight for pool in cluster.pools] == [expected]
