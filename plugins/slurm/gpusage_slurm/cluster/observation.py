"""The cluster as gpusaged observes it: its GPUs, their billing, which can be preferred, and where none is shared.

Tried on 22.05, 24.11 and 26.05: without `ignore_prefer_validation` in SchedulerParameters, slurmctld refuses a job
whose `--prefer` none of its nodes could ever meet ("Requested node configuration is not available"): the node is in
another partition, has too little memory or too few CPUs, is excluded, or lacks another resource that the job requests.
gpusage must never cause a refusal, so without that setting it prefers nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpusage_hooks.managers import GpuCatalogue
from gpusage_hooks.types import Cluster
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.billing import with_billing_weights
from gpusage_slurm.cluster.limits import UNKNOWN, BookKeeper, limits_hold, unseen_limits
from gpusage_slurm.cluster.pools import read_cluster
from gpusage_slurm.cluster.restrictions import (
    booked_twice,
    gpu_reservations,
    join_reasons,
    limiting_qos,
    partitions_with,
    per_gpu_default_partitions,
    preemptable_partitions,
    preemptable_qos,
    whole_node_partitions,
    without_backup,
)
from gpusage_slurm.install import node_scripts
from gpusage_slurm.install.site import local_socket_candidates
from gpusage_slurm.settings import SlurmSettings
from gpusage_slurm.tres import REPLACING_VERSION

NO_RELEASE = (
    "no share binds a job to GPU types, because gpusaged runs neither as root nor as SlurmUser, and could not let it go"
)

SETTING = "ignore_prefer_validation"
NO_PREFERENCE = f"no GPU generation is preferred, because SchedulerParameters lacks {SETTING}"

_BOOKS = BookKeeper()
_SLURM_USER = re.compile(r"\((\d+)\)$")


def observe_cluster(catalogue: GpuCatalogue, own: SlurmSettings) -> Cluster:
    """Return the cluster, with the partitions and other places where GPUs stay whole, by the site's *own* settings too.

    Raises:
        RequestError: slurmctld does not answer.
    """
    settings, partitions = scontrol.configuration(), scontrol.partitions()
    cluster = with_billing_weights(
        without_unsafe_preferences(read_cluster(partitions, catalogue), settings), partitions
    )
    units = max((pool.mps_per_gpu or 0 for pool in cluster.pools), default=0)

    # Limits and preemption, as slurmdbd has them. A limit of a partition's own QOS holds there for every job.
    books = _BOOKS.read(settings)
    unseen = tuple(unseen_limits(books, settings, partitions, cluster.pools)) if books else ()
    limits = {limit.scope: limit.reason for limit in unseen}
    if any(scope.startswith("account=") for scope in limits):
        limits["account="] = "its account is not known, and accounts here have limits that do not count shares"
    stopping = limiting_qos(books.qos, units) if books and limits_hold(settings) else {}
    limiting = join_reasons(stopping, limits)

    # Who may not change jobs could not free one that waits for the GPU types to which it is bound.
    releases = gpusaged_may_change_jobs(settings, local_socket_candidates())
    return replace(
        cluster,
        name=settings.get("clustername", ""),
        releases=releases,
        repeats=can_requeue_unseen(settings),
        repeats_slices=cluster.version >= REPLACING_VERSION,
        notes=cluster.notes if releases else (*cluster.notes, NO_RELEASE),
        unshared=join_reasons(
            node_scripts.unenforced_partitions(settings, partitions),
            without_backup(settings, partitions),
            {} if own.accept_double_booking else booked_twice(settings, partitions),
            whole_node_partitions(partitions),
            partitions_with(partitions, limiting),
            per_gpu_default_partitions(settings, partitions),
            gpu_reservations(scontrol.reservations()),
            limiting,
            {f"partition={each['PartitionName']}": UNKNOWN for each in partitions if books is None},
            preemptable_qos(books.qos if books else (), settings),
            preemptable_partitions(partitions, cluster.pools, settings),
        ),
    )


def can_requeue_unseen(settings: Mapping[str, str]) -> bool:
    """Return whether a task epilog of ours runs by these *settings*, and whether jobs may be requeued."""
    has_epilog = node_scripts.script_path(settings, node_scripts.TASK_EPILOG) is not None
    return has_epilog and settings.get("jobrequeue") != "0"


def ignores_unmet_preference(settings: Mapping[str, str]) -> bool:
    """Return whether slurmctld, by its *settings*, ignores a preference that no node can meet."""
    words = settings.get("schedulerparameters", "").lower().replace(" ", ",").split(",")
    return any(word.partition("=")[0] == SETTING for word in words)


def without_unsafe_preferences(cluster: Cluster, settings: Mapping[str, str]) -> Cluster:
    """Return *cluster*, without features if a preference could get a job refused."""
    if ignores_unmet_preference(settings):
        return cluster
    pools = tuple(replace(pool, feature=None) for pool in cluster.pools)
    return replace(cluster, pools=pools, notes=(*cluster.notes, NO_PREFERENCE))


def may_change_jobs(uid: int, settings: Mapping[str, str]) -> bool:
    """Return whether *uid* may change other users' jobs: root and SlurmUser may; only slurmdbd knows operators."""
    slurm_user = _SLURM_USER.search(settings.get("slurmuser", ""))
    return uid == 0 or (slurm_user is not None and uid == int(slurm_user[1]))


def gpusaged_may_change_jobs(settings: Mapping[str, str], sockets: Iterable[str]) -> bool:
    """Return whether gpusaged may change jobs: it is this process or the owner of one of its *sockets*."""
    # `gpusage slurm doctor` may run as another user than gpusaged, which owns its socket.
    uids = {os.geteuid()}
    for socket in sockets:
        with suppress(OSError):
            uids.add(Path(socket).stat().st_uid)
    return any(may_change_jobs(uid, settings) for uid in uids)
