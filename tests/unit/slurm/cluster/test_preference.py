"""Where a preference could become a demand."""

from __future__ import annotations

import pytest

from gpusage_hooks.types import Cluster, GpuPool
from gpusage_slurm.cluster.preference import is_soft, without_demands

POOL = GpuPool(gpu="v100", site_type="v100", gpu_count=1, free_gpu_count=1, feature="v100")
CLUSTER = Cluster(manager="slurm", version="24.11", pools=(POOL,), notes=("seen",))


@pytest.mark.parametrize(
    ("parameters", "soft"),
    [
        ("ignore_prefer_validation", True),
        ("bf_interval=1,Ignore_Prefer_Validation,defer", True),
        ("", False),
        ("bf_interval=1", False),
        ("ignore_prefer_validation_not", False),
    ],
)
def test_the_sites_own_setting_decides(parameters: str, *, soft: bool) -> None:
    assert is_soft({"schedulerparameters": parameters}) is soft


def test_where_it_is_soft_the_cluster_is_as_it_was() -> None:
    assert without_demands(CLUSTER, {"schedulerparameters": "ignore_prefer_validation"}) is CLUSTER


def test_where_it_is_hard_nothing_can_be_preferred_and_a_note_says_why() -> None:
    cluster = without_demands(CLUSTER, {})
    assert [pool.feature for pool in cluster.pools] == [None]
    assert cluster.notes[0] == "seen"
    assert "ignore_prefer_validation" in cluster.notes[1]
