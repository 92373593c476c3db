"""What gpusaged sees of a Slurm cluster at each look: its GPUs, and where none of them is shared."""

from __future__ import annotations

from dataclasses import replace

from gpusage_hooks.managers import GpuCatalogue
from gpusage_hooks.types import Cluster
from gpusage_slurm import scontrol
from gpusage_slurm.address import local_sockets
from gpusage_slurm.cluster.per_gpu_defaults import losses
from gpusage_slurm.cluster.pools import read_cluster
from gpusage_slurm.cluster.preference import without_demands
from gpusage_slurm.cluster.rights import gpusaged_may_change_jobs
from gpusage_slurm.cluster.unshared import (
    gpu_reservations,
    joined,
    limiting_qos,
    partitions_with,
    whole_node_partitions,
)
from gpusage_slurm.cluster.weights import with_weights
from gpusage_slurm.installing import node_side

_NO_RELEASE = (
    "no share binds a job to GPU types, because gpusaged runs neither as root nor as SlurmUser, and could not let it go"
)


def observe_cluster(catalogue: GpuCatalogue) -> Cluster:
    """Return the cluster, with the partitions and other places where GPUs stay whole.

    Raises:
        RequestError: slurmctld does not answer.
    """
    settings, partitions = scontrol.configuration(), scontrol.partitions()
    cluster = with_weights(without_demands(read_cluster(partitions, catalogue), settings), partitions)
    units = max((pool.mps_per_gpu or 0 for pool in cluster.pools), default=0)
    limiting = limiting_qos(scontrol.quality_of_service(settings), units)
    releases = gpusaged_may_change_jobs(settings, local_sockets())
    return replace(
        cluster,
        releases=releases,
        notes=cluster.notes if releases else (*cluster.notes, _NO_RELEASE),
        unshared=joined(
            node_side.unshared(settings, partitions),
            whole_node_partitions(partitions),
            partitions_with(partitions, limiting),
            losses(settings, partitions),
            gpu_reservations(scontrol.reservations()),
            limiting,
        ),
    )
