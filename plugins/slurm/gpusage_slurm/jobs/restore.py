"""Restoring the original request of a pending job, by `scontrol update`.

Slurm 24.11 and 26.05 change a pending job's shares into GPUs; 22.05 refuses ("Invalid generic resource"; emptied first,
the job would run without any). There a job that is bound to GPU types gets all shares of one GPU, wherever that is, and
any other keeps its share. Other requested resources stay. A restored job carries the mark BACK, and is left alone from
then on; one that could not be restored carries STUCK.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gpusage.store.annotation import JobAnnotation, parse_annotation, with_annotation
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import AnnotatedJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import count_of_type, counts, parse_node
from gpusage_slurm.jobs.placement import mig_type_of, readmission_settings, readmitted_mark, user_constraint
from gpusage_slurm.jobs.queue import Row, base_id, squeue_rows, update_job
from gpusage_slurm.submission.placement import avoided_nodes_in, placement_in
from gpusage_slurm.tres import Tres, is_gpu, is_share, parse_tres

_GPU = re.compile(r"gres/(gpu(?::[A-Za-z0-9_.-]+)?:1)")
_COLUMNS = (("JobArrayID", 64), ("tres-per-node", 512), ("Feature", 1100))
MAXIMUM_BYTES = 1024
"""Of an admin comment."""
_REFUSED = ("generic resource", "GRES specification")
"""How 22.05 says that it changes no share, and no slice, into a GPU."""
_REMEDY = "Slurm of this version cannot do it: cancel the job, and submit it with gpusage=off in its comment"


def restore_request(job: AnnotatedJob, reason: str) -> bool:
    """Let *job* run on the nodes that it avoids; if it avoids none, give it one whole GPU again; see the hook.

    Raises:
        RequestError: As `replace_share`.
    """
    mark = parse_annotation(job.mark)
    if mark is not None and avoided_nodes_in(mark):
        update_job(job.job_id, *readmission_settings(job, mark), _mark_setting(job, readmitted_mark(mark, reason)))
        return True
    return restore_whole_gpu(job, reason)


def restore_whole_gpu(job: AnnotatedJob, reason: str) -> bool:
    """Give *job* one whole GPU again, or write into its mark what its user can do.

    Raises:
        RequestError: As `replace_share`.
    """
    if replace_share(job, reason):
        return True
    mark = parse_annotation(job.mark)
    if mark is not None and mark.code != "STUCK":
        advice = f"should have its GPU back: {reason}. {_REMEDY} | {mark.reasons}"
        update_job(job.job_id, _mark_setting(job, replace(mark, code="STUCK", reasons=advice)))
    return False


def replace_share(job: AnnotatedJob, reason: str, *more: str, accept_all_units: bool = False) -> bool:
    """Return whether *job*, which waits, has one whole GPU again.

    Args:
        job: With its mark.
        reason: For the mark.
        more: Settings that are changed at the same time.
        accept_all_units: Whether all shares of a GPU will do even for a job that is not bound to GPU types.

    Raises:
        RequestError: The job waits no more, carries no mark of a share, or slurmctld refuses.
    """
    mark = parse_annotation(job.mark)
    match = _GPU.fullmatch(mark.before) if mark else None
    if mark is None or match is None or not mark.of_share:
        message = f"Job {job.job_id} must carry the mark of a share; got {job.mark[:80]!r}. It is left as it is."
        raise RequestError(message)
    row = _pending_row(job, mark)
    freed = (*_unbinding_settings(mark, row["Feature"]), *readmission_settings(job, mark), *more)
    if _try_update(job, mark, row, match[1], freed, reason):
        return True
    units = units_per_gpu() if accept_all_units or any(setting.startswith("Features=") for setting in freed) else None
    return units is not None and _try_update(job, mark, row, f"mps:{units}", freed, reason)


def record_requeue(job: AnnotatedJob, reason: str, *more: str) -> bool:
    """Return whether *job*, which was requeued with one whole GPU, has it, and the mark that says so.

    Args:
        job: With the mark of its share; it waits, or runs.
        reason: For the mark.
        more: Settings that are changed at the same time.

    Raises:
        RequestError: slurmctld refuses.
    """
    mark = parse_annotation(job.mark)
    listed = {
        row["JobArrayID"]: row for row in squeue_rows("--states=all", f"--jobs={base_id(job.job_id)}", columns=_COLUMNS)
    }
    row = listed.get(job.job_id)
    held = next(_gpu_tres(row), "") if row else ""
    if mark is None or row is None or not held:
        message = f"Job {job.job_id} must carry the mark of a share, and ask for a GPU; it does not. It stays as it is."
        raise RequestError(message)
    if f"gres/{held}" == mark.after.partition(",")[0]:
        return job.state == "waiting" and replace_share(job, reason, "StartTime=now+10", *more, accept_all_units=True)
    freed = (
        (*_unbinding_settings(mark, row["Feature"]), *readmission_settings(job, mark)) if job.state == "waiting" else ()
    )
    back = replace(mark, code="BACK", before=mark.after, after=f"gres/{held}", reasons=reason)
    update_job(job.job_id, *freed, _mark_setting(job, back), *more)
    return True


def _gpu_tres(row: Row) -> Iterator[str]:
    """Yield what the job in *row* asks for of GPUs, without Slurm's prefix: ``gpu:1``, ``mps:100``."""
    for resource in parse_tres(row["tres-per-node"]):
        if is_gpu(resource) or is_share(resource):
            yield re.sub(r"^gres[:/]", "", resource.text)


def _try_update(
    job: AnnotatedJob, mark: JobAnnotation, row: Row, gpu: str, freed: tuple[str, ...], reason: str
) -> bool:
    """Return whether slurmctld lets the job have *gpu* in the place of its share."""
    back = replace(mark, code="BACK", before=mark.after, after=f"gres/{gpu}", reasons=reason)
    try:
        update_job(job.job_id, f"Gres={_gres_with_gpu(row, mark, gpu)}", *freed, _mark_setting(job, back))
    except RequestError as error:
        if not any(words in str(error) for words in _REFUSED):
            raise
        return False
    return True


def units_per_gpu() -> int | None:
    """Return how many shares every GPU that can be shared counts, ``None`` where they differ."""
    units = {
        count_of_type(counts(node.gres, "mps"), kind) // count
        for node in map(parse_node, scontrol.nodes())
        for kind, count in counts(node.gres, "gpu").items()
        if count
    }
    units.discard(0)  # of slices, and other GPUs that are not shared
    return units.pop() if len(units) == 1 else None


def _unbinding_settings(mark: JobAnnotation, features: str) -> Iterator[str]:
    """Yield the settings that take back where the share was to run; a GPU type that the user named stays held."""
    if placement_in(mark).startswith("prefer "):
        yield "Prefer="
    own = user_constraint(mark, features)
    if own is not None:
        yield f"Features={own}"


def _pending_row(job: AnnotatedJob, mark: JobAnnotation) -> Row:
    """Return what the job asks for now; it waits for a share, or a slice."""
    which = ("--states=PENDING", f"--jobs={base_id(job.job_id)}")
    waiting = {row["JobArrayID"]: row for row in squeue_rows(*which, columns=_COLUMNS)}.get(job.job_id)
    if waiting is None or not any(_is_own_share(each, mark) for each in parse_tres(waiting["tres-per-node"])):
        message = f"Job {job.job_id} must wait for a share; it waits no more, or was changed. It is left as it is."
        raise RequestError(message)
    return waiting


def _is_own_share(resource: Tres, mark: JobAnnotation) -> bool:
    """Return whether *resource* is the share or slice that a job with *mark* has in place of its GPU."""
    return is_share(resource) or (is_gpu(resource) and resource.kind is not None and resource.kind == mig_type_of(mark))


def _gres_with_gpu(row: Row, mark: JobAnnotation, gpu: str) -> str:
    """Return what the job in *row* asks for, *gpu* in the place of its share or slice."""
    resources = parse_tres(row["tres-per-node"])
    others = [re.sub(r"^gres[:/]", "", resource.text) for resource in resources if not _is_own_share(resource, mark)]
    return ",".join((gpu, *others))


def _mark_setting(job: AnnotatedJob, new: JobAnnotation) -> str:
    """Return the setting that puts *new* in the place of the job's mark, within Slurm's limit."""
    return f"AdminComment={with_annotation(job.mark, new, MAXIMUM_BYTES)}"
