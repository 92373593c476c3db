"""The observed cluster: whether a preference is safe."""

from __future__ import annotations

import pytest

from gpusage_hooks.types import Cluster, GpuPool
from gpusage_slurm.cluster.observation import (
    can_requeue_unseen,
    ignores_unmet_preference,
    without_unsafe_preferences,
)

PREFERRED_POOL = GpuPool(gpu="v100", site_type="v100", gpu_count=1, free_gpu_count=1, feature="v100")
CLUSTER = Cluster(manager="slurm", version="24.11", pools=(PREFERRED_POOL,), notes=("seen",))


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
    assert ignores_unmet_preference({"schedulerparameters": parameters}) is soft


def test_where_it_is_soft_the_cluster_is_as_it_was() -> None:
    assert without_unsafe_preferences(CLUSTER, {"schedulerparameters": "ignore_prefer_validation"}) is CLUSTER


def test_where_it_is_hard_nothing_can_be_preferred_and_a_note_says_why() -> None:
    cluster = without_unsafe_preferences(CLUSTER, {})
    assert [pool.feature for pool in cluster.pools] == [None]
    assert cluster.notes[0] == "seen"
    assert "ignore_prefer_validation" in cluster.notes[1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"taskepilog": "/etc/gpusage/gpusage_task_epilog.sh"}, True),
        ({"taskepilog": "/etc/gpusage/gpusage_task_epilog.sh", "jobrequeue": "1"}, True),
        ({"taskepilog": "/etc/gpusage/gpusage_task_epilog.sh", "jobrequeue": "0"}, False),
        ({"taskepilog": "/site/epilog.sh"}, False),
        ({}, False),
    ],
)
def test_a_job_can_run_again_unseen_where_slurm_requeues_and_our_task_epilog_runs(
    settings: dict[str, str], *, expected: bool
) -> None:
    """Where it cannot, a job shares only if its need is certain (tests/unit/policies/test_share_price.py)."""
    assert can_requeue_unseen(settings) is expected
