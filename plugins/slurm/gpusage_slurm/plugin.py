"""What gpusage's Slurm adapter answers when the core asks; nothing slow is imported before it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpusage_hooks import hookimpl
from gpusage_hooks.managers import Context, GpuCatalogue, Manager
from gpusage_hooks.types import Cluster, JobState, MarkedJob, PastJob, StarvedJob, Usage
from gpusage_slurm.settings import SLURM
from gpusage_slurm.submission.render import render_decision
from gpusage_slurm.submission.request import MANAGER, parse_submission

__all__ = [
    "add_commands",
    "collect_usage",
    "describe_manager",
    "find_jobs",
    "observe_cluster",
    "parse_submission",
    "read_cluster",
    "read_past_jobs",
    "render_decision",
    "rescue",
    "shared_jobs",
    "starved_jobs",
    "turn_back",
]


@hookimpl(trylast=True)
def describe_manager() -> Manager:
    """Return Slurm."""
    return SLURM


@hookimpl(trylast=True)
def observe_cluster(manager: str, context: Context) -> Cluster | None:
    """Ask Slurm for its nodes.

    Raises:
        RequestError: slurmctld does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm.cluster import observing  # noqa: PLC0415 - what lists commands starts faster

    return observing.observe_cluster(context.catalogue)


@hookimpl(trylast=True)
def read_cluster(path: str, catalogue: GpuCatalogue) -> Cluster | None:
    """Read a slurm.conf.

    Raises:
        RequestError: It has no GPUs, or cannot be understood.
    """
    from gpusage_slurm.cluster import written  # noqa: PLC0415 - what lists commands starts faster

    return written.written_cluster(path, catalogue)


@hookimpl(trylast=True)
def read_past_jobs(path: str) -> Sequence[PastJob] | None:
    """Read what `sacct` printed.

    Raises:
        RequestError: It is sacct's, and a column is missing, or a cell is not what sacct writes.
    """
    from gpusage_slurm import trace  # noqa: PLC0415 - as above

    return trace.read_past_jobs(path)


@hookimpl(trylast=True)
def find_jobs(manager: str, job_id: str, user: str) -> Sequence[MarkedJob] | None:
    """Find jobs by `squeue`, and those that slurmctld has forgotten by `sacct`.

    Raises:
        RequestError: slurmctld does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm.jobs import rows  # noqa: PLC0415 - sbatch waits for job-card, which asks for no jobs

    return rows.find_jobs(job_id, user)


@hookimpl(trylast=True)
def shared_jobs(manager: str, states: Sequence[JobState]) -> Sequence[MarkedJob] | None:
    """Find the jobs whose whole GPU became a share.

    Raises:
        RequestError: slurmctld does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm.jobs import rewritten  # noqa: PLC0415 - as above

    return rewritten.shared_jobs(states)


@hookimpl(trylast=True)
def turn_back(job: MarkedJob, reason: str) -> bool | None:
    """Give a waiting job its GPU again, where this version of Slurm can.

    Raises:
        RequestError: slurmctld refuses.
    """
    if job.manager != MANAGER:
        return None
    from gpusage_slurm.jobs import turning_back  # noqa: PLC0415 - as above

    return turning_back.turn_back(job, reason)


@hookimpl(trylast=True)
def starved_jobs(manager: str) -> Sequence[StarvedJob] | None:
    """Find the jobs whose share's memory was too small.

    Raises:
        RequestError: slurmctld does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm.jobs import starving  # noqa: PLC0415 - as above

    return starving.starved_jobs()


@hookimpl(trylast=True)
def rescue(job: MarkedJob, reason: str) -> bool | None:
    """Run a starved job again with a whole GPU.

    Raises:
        RequestError: slurmctld refuses.
    """
    if job.manager != MANAGER:
        return None
    from gpusage_slurm.jobs import starving  # noqa: PLC0415 - as above

    return starving.rescue(job, reason)


@hookimpl(trylast=True)
def collect_usage(manager: str, context: Context) -> Sequence[Usage] | None:
    """Read what nodes tell of the jobs that ended there.

    Raises:
        RequestError: slurmctld does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm.usage import collecting  # noqa: PLC0415 - as above

    return collecting.collect_usage(context.catalogue)


@hookimpl(trylast=True)
def add_commands() -> Sequence[click.Command]:
    """Return `gpusage slurm`."""
    from gpusage_slurm.commands import slurm  # noqa: PLC0415 - gpusaged has no commands

    return [slurm]
