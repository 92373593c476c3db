from gpusage_hooks.types import Cluster, GpuPool
from gpusage_slurm.cluster.per_gpu_defaults import losses
from gpusage_slurm.scontrol import parse_lines

POOL = GpuPool(gpu="v100", site_type="v100", gpu_count=1, free_gpu_count=1, mps_per_gpu=100)
GPU = "PartitionName=gpu AllowGroups=ALL JobDefaults=DefCpuPerGPU=4,DefMemPerGPU=1000 DefMemPerNode=UNLIMITED"
PLAIN = "PartitionName=plain AllowGroups=ALL JobDefaults=(null) DefMemPerCPU=10"
PARTITIONS = parse_lines(f"{GPU}\n{PLAIN}", "PartitionName")


def test_a_partitions_defaults_concern_that_partition_alone() -> None:
    assert losses({"jobdefaults": ""}, PARTITIONS) == {
        "partition=gpu": "a share would lose what partition gpu gives for each GPU (DefCpuPerGPU=4, DefMemPerGPU=1000)"
    }


def test_slurm_confs_defaults_concern_every_partition_and_its_own_stand_in_their_place() -> None:
    found = losses({"jobdefaults": "DefMemPerGPU=2"}, PARTITIONS)
    assert "(DefCpuPerGPU=4, DefMemPerGPU=1000)" in found["partition=gpu"]
    assert "(DefMemPerGPU=2)" in found["partition=plain"]


def test_a_job_that_may_run_in_such_a_partition_sees_no_gpu_that_can_be_shared() -> None:
    cluster = Cluster(
        manager="slurm",
        version="",
        pools=(POOL,),
        default_partition="plain",
        unshared={"partition=gpu": "a", "partition=odd": "b"},
    )
    seen = cluster.within(("gpu", "plain"))
    assert ([pool.mps_per_gpu for pool in seen.pools], seen.unshared) == ([None], {"partition=gpu": "a"})
    elsewhere = cluster.within(())
    assert ([pool.mps_per_gpu for pool in elsewhere.pools], elsewhere.unshared) == ([100], {})
