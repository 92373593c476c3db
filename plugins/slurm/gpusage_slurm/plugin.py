"""The hooks of gpusage's Slurm adapter; nothing slow is imported before it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpusage_hooks import hookimpl
from gpusage_hooks.managers import Context, GpuCatalogue, Manager
from gpusage_hooks.types import (
    AnnotatedJob,
    Cluster,
    Decision,
    DecisionRequest,
    Job,
    JobState,
    OutOfMemoryJob,
    PastJob,
    RenderedDecision,
    Usage,
)
from gpusage_slurm.settings import MANAGER, SLURM, SlurmSettings


@hookimpl(trylast=True)
def describe_manager() -> Manager:
    """Return Slurm."""
    return SLURM


@hookimpl(trylast=True)
def parse_submission(submission: DecisionRequest, context: Context) -> Job | None:
    """Parse a job description's fields, or a script.

    Raises:
        RequestError: The user's words to us are malformed.
    """
    if submission.manager != MANAGER:
        return None
    from gpusage_slurm.submission import request  # what lists commands starts faster

    return request.parse_submission(submission, context.model_names)


@hookimpl(trylast=True)
def render_decision(job: Job, decision: Decision, cluster: Cluster, context: Context) -> RenderedDecision | None:
    """Express a decision in Slurm's terms."""
    if job.submission.manager != MANAGER:
        return None
    from gpusage_slurm.submission import render  # as above

    settings = context.settings
    with_notice = settings.notice if isinstance(settings, SlurmSettings) else True
    return render.render_decision(job, decision, cluster, with_notice=with_notice)


@hookimpl(trylast=True)
def observe_cluster(manager: str, context: Context) -> Cluster | None:
    """Ask Slurm for its nodes; ``None`` where this host has neither Slurm's commands nor its configuration.

    Raises:
        RequestError: slurmctld does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm import scontrol  # as below

    if not scontrol.is_slurm_host():
        return None
    from gpusage_slurm.cluster import observation  # what lists commands starts faster

    settings = context.settings if isinstance(context.settings, SlurmSettings) else SlurmSettings()
    return observation.observe_cluster(context.catalogue, settings)


@hookimpl(trylast=True)
def read_cluster(path: str, catalogue: GpuCatalogue) -> Cluster | None:
    """Read a slurm.conf.

    Raises:
        RequestError: It has no GPUs, or cannot be understood.
    """
    from gpusage_slurm.cluster import from_slurm_conf  # what lists commands starts faster

    return from_slurm_conf.cluster_of_slurm_conf(path, catalogue)


@hookimpl(trylast=True)
def read_past_jobs(path: str) -> Sequence[PastJob] | None:
    """Read a file that `sacct` printed.

    Raises:
        RequestError: It is sacct's, and a column is missing, or a cell is not what sacct writes.
    """
    from gpusage_slurm import trace

    return trace.read_past_jobs(path)


@hookimpl(trylast=True)
def collect_past_jobs(manager: str, since_s: float) -> Sequence[PastJob] | None:
    """Ask `sacct` for the jobs that this user may see; ``None`` where this host has no Slurm.

    Raises:
        RequestError: There is no accounting, or it does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm import scontrol, trace  # as above

    return trace.collect_past_jobs(since_s) if scontrol.is_slurm_host() else None


@hookimpl(trylast=True)
def find_jobs(manager: str, job_id: str, user: str) -> Sequence[AnnotatedJob] | None:
    """Find jobs by `squeue`, or by `sacct` if slurmctld has forgotten them.

    Raises:
        RequestError: slurmctld does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm.jobs import queue  # sbatch waits for job-card, which asks for no jobs

    return queue.find_jobs(job_id, user)


@hookimpl(trylast=True)
def find_shared_jobs(manager: str, states: Sequence[JobState]) -> Sequence[AnnotatedJob] | None:
    """Find the jobs whose whole GPU became a share.

    Raises:
        RequestError: slurmctld does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm.jobs import stuck

    return stuck.find_shared_jobs(states)


@hookimpl(trylast=True)
def restore_request(job: AnnotatedJob, reason: str) -> bool | None:
    """Give a waiting job its GPU again, where this version of Slurm can.

    Raises:
        RequestError: slurmctld refuses.
    """
    if job.manager != MANAGER:
        return None
    from gpusage_slurm.jobs import restore

    return restore.restore_request(job, reason)


@hookimpl(trylast=True)
def find_out_of_memory_jobs(manager: str) -> Sequence[OutOfMemoryJob] | None:
    """Find the jobs whose share's memory was too small.

    Raises:
        RequestError: slurmctld does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm.jobs import restore

    return restore.find_out_of_memory_jobs()


@hookimpl(trylast=True)
def requeue_on_whole_gpu(job: AnnotatedJob, reason: str) -> bool | None:
    """Complete the requeue of a job that ran out of memory in its share.

    Raises:
        RequestError: slurmctld refuses.
    """
    if job.manager != MANAGER:
        return None
    from gpusage_slurm.jobs import restore

    return restore.complete_requeue(job, reason)


@hookimpl(trylast=True)
def collect_usage(manager: str, context: Context) -> Sequence[Usage] | None:
    """Read the usage of ended jobs from their nodes' comments.

    Raises:
        RequestError: slurmctld does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm.usage import collection

    return collection.collect_usage(context.catalogue)


@hookimpl(trylast=True)
def read_accounting(manager: str, since_s: float, until_s: float, context: Context) -> Sequence[Usage] | None:
    """Ask slurmdbd, by `sacct`; ``None`` where this host has neither Slurm's commands nor its configuration.

    Raises:
        RequestError: There is none, or it does not answer.
    """
    if manager != MANAGER:
        return None
    from gpusage_slurm import scontrol  # as above

    if not scontrol.is_slurm_host():
        return None
    from gpusage_slurm.usage import accounting

    return accounting.read_accounting(since_s, until_s, context.catalogue)


@hookimpl(trylast=True)
def add_commands() -> Sequence[click.Command]:
    """Return `gpusage slurm`."""
    from gpusage_slurm.commands import slurm  # gpusaged has no commands

    return [slurm]
