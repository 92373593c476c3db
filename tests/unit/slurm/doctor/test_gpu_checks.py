"""By which weight a share costs its part of a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage_hooks.types import GpuPool
from gpusage_slurm.doctor.gpu_checks import wrong_weights

POOL = GpuPool(
    gpu="v100-sxm2-16gb", site_type="v100", gpu_count=2, free_gpu_count=2, mps_per_gpu=100, partitions=("p", "q")
)


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
