from gpusage_hooks.types import Cluster, GpuPool
from gpusage_slurm.per_gpu import defaults, without_losses

POOL = GpuPool(gpu="v100", site_type="v100", gpu_count=1, free_gpu_count=1, mps_per_gpu=100)
CLUSTER = Cluster(manager="slurm", version="", pools=(POOL,))


def test_defaults_per_gpu_are_found_for_the_cluster_and_for_a_partition() -> None:
    line = "PartitionName=gpu JobDefaults=DefCpuPerGPU=4,DefMemPerGPU=1000 DefMemPerNode=UNLIMITED"
    assert defaults({}, line) == ("DefCpuPerGPU=4", "DefMemPerGPU=1000")
    assert defaults({"jobdefaults": "DefCpuPerGPU=2"}, "PartitionName=gpu JobDefaults=(null)") == ("DefCpuPerGPU=2",)
    assert defaults({"jobdefaults": ""}, "PartitionName=gpu JobDefaults=(null) DefMemPerCPU=10") == ()


def test_where_a_share_would_lose_them_no_gpu_is_shared_and_a_note_says_why() -> None:
    seen = without_losses(CLUSTER, ("DefCpuPerGPU=4",))
    assert [pool.mps_per_gpu for pool in seen.pools] == [None]
    assert "DefCpuPerGPU=4" in seen.notes[0]
    assert without_losses(CLUSTER, ()) == CLUSTER
