"""Jobs that get a whole GPU in place of their share: pending ones that seem stuck, and those that ran out of memory.

Slurm 24.11 and 26.05 change a pending job's shares into GPUs; 22.05 refuses ("Invalid generic resource"; emptied first,
the job would run without any). There a job that is bound to GPU types gets all shares of one GPU, wherever that is, and
any other keeps its share, or its slice. Other requested resources stay. A restored job carries the mark BACK, and is
left alone from then on; one that could not be restored carries STUCK.

Where a job ran out of memory, its task epilog (node/task_epilog.sh) requeues it, as the job's user and before
slurmctld learns of its end. It appends a note to the job's comment: `REQUEUED` if it requeued the job, `OUT_OF_MEMORY`
if it could not. Here the requeued jobs are found by that note, their marks corrected, and the placement of their share
removed.

Invariants:

1. Only a job that the epilog requeued is changed, and none is requeued here: others know how the rest have ended.
2. A job is never held. While gpusaged is stopped, a requeued job runs with its whole GPU and keeps its old mark.
3. Of an array only the failed task is requeued; its tasks that wait get a whole GPU, those that run stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from gpusage.store.annotation import JobAnnotation, parse_annotation, with_annotation
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import AnnotatedJob, OutOfMemoryJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import counts, parse_node, units_per_gpu
from gpusage_slurm.jobs.placement import (
    avoided_nodes_in,
    mig_type_of,
    other_types_in,
    placement_in,
    readmission_settings,
    readmitted_mark,
    start_in,
    user_constraint,
)
from gpusage_slurm.jobs.queue import (
    Row,
    annotated_job,
    base_id,
    is_interrupted,
    possible_shares,
    squeue_rows,
    squeue_rows_of,
    update_job,
)
from gpusage_slurm.submission.render import ELSE, OR
from gpusage_slurm.submission.request import FIELD_BYTES
from gpusage_slurm.tres import REPLACING_PREFIX, Tres, is_gpu, is_share, parse_tres

OUT_OF_MEMORY = "[out of GPU memory, says gpusage]"
REQUEUED = re.compile(r" ?\[out of GPU memory, started ([0-9T:-]+), says gpusage\]")

_GPU = re.compile(r"gres/(gpu(?::[A-Za-z0-9_.-]+)?:1)")
_PREFIX = re.compile(r"^gres[:/]")
_REFUSED = ("generic resource", "GRES specification")
"""How 22.05 says that it changes no share, and no slice, into a GPU."""
_REMEDY = "Slurm of this version cannot do it: cancel the job, and submit it with gpusage=off in its comment"

_REQUEST_COLUMNS = (("tres-per-node", 512), ("Feature", 1100))
_RESTART_COLUMNS = (("JobArrayID", 64), ("RestartCnt", 8))
_END_COLUMNS = (
    *(("JobArrayID", 64), ("UserName", 64), ("StateCompact", 4), ("Reason", 64), ("Requeue", 8), ("BatchFlag", 8)),
    *(("exit_code", 16), *_REQUEST_COLUMNS),
    *(("StartTime", 24), ("EndTime", 24), ("SubmitTime", 24), ("Comment", 1100), ("admin_comment", 1100)),
)
_ANY_STATE = "--states=all"


def restore_request(job: AnnotatedJob, reason: str) -> bool:
    """Let *job* run on the nodes that it avoids; if it avoids none, or a whole GPU is free there, give it that again.

    One that was held to one of several GPU types names another.

    Raises:
        RequestError: As `_replace_share`.
    """
    mark = parse_annotation(job.mark)
    if job.other_types:
        return _replace_share(job, reason)
    if mark is not None and avoided_nodes_in(mark) and not job.needs_whole_gpu:
        update_job(job.job_id, *readmission_settings(job, mark), _mark_setting(job, readmitted_mark(mark, reason)))
        return True
    return restore_whole_gpu(job, reason)


def restore_whole_gpu(job: AnnotatedJob, reason: str) -> bool:
    """Give *job* a whole GPU again, or write the remedy for its user into its mark.

    Raises:
        RequestError: As `_replace_share`.
    """
    if _replace_share(job, reason):
        return True
    mark = parse_annotation(job.mark)
    if mark is not None and mark.code != "STUCK":
        advice = f"should have its GPU back: {reason}. {_REMEDY} | {mark.reasons}"
        update_job(job.job_id, _mark_setting(job, replace(mark, code="STUCK", reasons=advice)))
    return False


def find_out_of_memory_jobs() -> tuple[OutOfMemoryJob, ...]:
    """Return the jobs that failed in their shares, and the requeued ones; see the hook.

    Raises:
        RequestError: slurmctld does not answer.
    """
    failed = possible_shares("--states=FAILED")
    rows = squeue_rows(_ANY_STATE, columns=_RESTART_COLUMNS)
    requeued = [row["JobArrayID"] for row in rows if row["RestartCnt"] not in ("", "0")]

    starved = []
    for row in _marked_rows(failed):
        # A job that has its GPU back may name its type, as a slice does.
        mark = parse_annotation(row["admin_comment"])
        if mark is None or not any(_is_own_share(each, mark) for each in parse_tres(row["tres-per-node"])):
            continue
        ran_out = OUT_OF_MEMORY in row["Comment"]
        if ran_out or not is_interrupted(row["exit_code"], row["Comment"]):
            job = OutOfMemoryJob(
                job=annotated_job(row),
                started_at_s=scontrol.seconds_of(row["StartTime"]) or 0.0,
                ended_at_s=scontrol.seconds_of(row["EndTime"]) or 0.0,
                final=_why_not_requeued(row),
                outcome="out_of_memory" if ran_out else "failed",
            )
            starved.append(job)
    for row in _marked_rows(requeued):
        # A start that is still the job's own: the epilog is about to requeue it. 26.05 shows that start for longer.
        note = REQUEUED.search(row["Comment"])
        if note and (row["StateCompact"] == "PD" or note[1] != row["StartTime"]):
            # slurmctld counts it as submitted when its first run ended.
            ended_at_s = scontrol.seconds_of(row["SubmitTime"]) or 0.0
            started_at_s = scontrol.seconds_of(note[1]) or ended_at_s
            starved.append(OutOfMemoryJob(job=annotated_job(row), started_at_s=started_at_s, ended_at_s=ended_at_s))
    return tuple(starved)


def _marked_rows(job_ids: Sequence[str], *, with_siblings: bool = False) -> Iterator[Row]:
    """Yield the jobs with *job_ids*, or also the other tasks of their arrays, that are marked as shares of ours."""
    # squeue is asked for whole arrays: a task that waits has no number of its own yet.
    bases = list(dict.fromkeys(map(base_id, job_ids)))
    for row in squeue_rows_of(bases, _ANY_STATE, columns=_END_COLUMNS):
        mark = parse_annotation(row["admin_comment"])
        if (with_siblings or row["JobArrayID"] in job_ids) and mark is not None and mark.of_share:
            yield row


def _why_not_requeued(row: Row) -> str:
    if row["Requeue"] == "0":
        return "it was submitted with --no-requeue, or the site requeues no job"
    if row["BatchFlag"] == "0" or "+" in row["JobArrayID"]:
        return "only batch jobs that have one part run again"
    return "its node could not tell how it ended, or was not allowed to change it"


def complete_requeue(job: AnnotatedJob, reason: str) -> bool:
    """Correct the mark of *job*, which its epilog requeued, and remove the placement of its share; see the hook.

    The tasks of its array that wait would lack memory as well, so they get a whole GPU, too.

    Raises:
        RequestError: slurmctld refuses, or the job was not requeued.
    """
    rows = {row["JobArrayID"]: row for row in _marked_rows((job.job_id,), with_siblings=True)}
    row = rows.pop(job.job_id, None)
    if row is None or not REQUEUED.search(row["Comment"]):
        message = f"Job {job.job_id} must have been requeued by its task epilog; it was not. It is left as it is."
        raise RequestError(message)

    for sibling in rows.values():
        # A task may have started with the whole GPU that the epilog gave it: then its mark alone is changed.
        if annotated_job(sibling).state != "ended" and not REQUEUED.search(sibling["Comment"]):
            with suppress(RequestError):  # it has just started, or ended
                _correct(sibling, f"{reason}: task {job.job_id} of its array did")

    if annotated_job(row).state == "ended":
        return True  # slurmctld changes no such job
    return _correct(row, reason, f"Comment={REQUEUED.sub('', row['Comment'])}")


def _correct(row: Row, reason: str, *comment: str) -> bool:
    """Return whether the job in *row* has a whole GPU, and its mark says so; its epilog changed it, or could not."""
    job = annotated_job(row)
    mark, resources = parse_annotation(job.mark), parse_tres(row["tres-per-node"])
    held = next((_PREFIX.sub("", each.text) for each in resources if is_gpu(each) or is_share(each)), "")
    if mark is None or not held:
        message = f"Job {job.job_id} must carry the mark of a share, and ask for a GPU; it does not. It stays as it is."
        raise RequestError(message)

    if f"gres/{held}" == mark.after.partition(",")[0]:
        # slurmstepd ended the epilog before it could restore the GPU. A node refuses a job that was started, by
        # slurmctld's clock, no later than its first run ended by the node's own: hence the later start.
        more = ("StartTime=now+10", *comment) if comment else ()
        return job.state == "waiting" and _replace_share(job, reason, *more, starved=True)
    freed = _placement_settings(job, mark, row["Feature"]) if job.state == "waiting" else ()
    update_job(job.job_id, *freed, _mark_setting(job, _restored_mark(mark, held, reason)), *comment)
    return True


def _replace_share(job: AnnotatedJob, reason: str, *more: str, starved: bool = False) -> bool:
    """Return whether *job*, which waits, has a whole GPU again, or names the first of the other types that will do.

    Args:
        job: With its mark.
        reason: For the mark.
        more: Settings that are changed at the same time.
        starved: Whether it lacked memory. Then all shares of a GPU will do even for a job that is not bound to GPU
            types, and a job that had a slice runs on the type that its mark names for this.

    Raises:
        RequestError: The job waits no more, carries no mark of a share, or slurmctld refuses.
    """
    mark = parse_annotation(job.mark)
    match = _GPU.fullmatch(mark.before) if mark else None
    if mark is None or match is None or not mark.of_share:
        message = f"Job {job.job_id} must carry the mark of a share; got {job.mark[:80]!r}. It is left as it is."
        raise RequestError(message)

    which = ("--states=PENDING", f"--jobs={base_id(job.job_id)}")
    row = {row["JobArrayID"]: row for row in squeue_rows(*which, columns=(("JobArrayID", 64), *_REQUEST_COLUMNS))}.get(
        job.job_id
    )
    resources = parse_tres(row["tres-per-node"]) if row else ()
    held = mark.after.partition(", ")[0]
    own = [
        each for each in resources if _is_own_share(each, mark) or (is_gpu(each) and f"gres/gpu:{each.kind}:1" == held)
    ]
    if row is None or not own:
        message = f"Job {job.job_id} must wait for a share; it waits no more, or was changed. It is left as it is."
        raise RequestError(message)

    # Slurm writes the prefix of its version, and takes a request without any.
    others = [_PREFIX.sub("", each.text) for each in resources if each not in own]
    freed = _placement_settings(job, mark, row["Feature"])

    def is_granted(gpu: str, new: JobAnnotation) -> bool:
        gres = f"Gres={','.join((gpu, *others))}"
        try:
            update_job(job.job_id, gres, *freed, *more, _mark_setting(job, new))
        except RequestError as error:
            if not any(words in str(error) for words in _REFUSED):
                raise
            return False
        return True

    # One that fits on few GPU types must not get any.
    if job.other_types:
        gpu, left = f"gpu:{job.other_types[0]}:1", (own[0].kind or "", *job.other_types[1:])
        return is_granted(gpu, replace(mark, after=f"gres/{gpu}, {OR}{'|'.join(left)}"))
    is_replaced = (starved or mark.keeps_off) and mig_type_of(mark) and REPLACING_PREFIX in row["tres-per-node"]
    larger = placement_in(mark).removeprefix(ELSE) if is_replaced and not other_types_in(mark) else ""
    gpu = f"gpu:{larger}:1" if larger else match[1]
    if is_granted(gpu, _restored_mark(mark, gpu, reason)):
        return True

    # 22.05. All shares of one GPU are as good as a GPU, where all GPUs count alike.
    may_count = starved or job.needs_whole_gpu or any(setting.startswith("Features=") for setting in freed)
    nodes = map(parse_node, scontrol.nodes()) if may_count else ()
    units = {units_per_gpu(node.gres, kind) for node in nodes for kind in counts(node.gres, "gpu")}
    units.discard(0)  # of slices, and other GPUs that are not shared
    gpu = f"mps:{next(iter(units), 0)}"
    return len(units) == 1 and is_granted(gpu, _restored_mark(mark, gpu, reason))


def _placement_settings(job: AnnotatedJob, mark: JobAnnotation, features: str) -> tuple[str, ...]:
    """Return the settings that take back where the share was to run; a GPU type that the user named stays held."""
    settings = ["Prefer="] if placement_in(mark).startswith("prefer ") else []
    own = user_constraint(mark, features)
    if own is not None:
        settings.append(f"Features={own}")
    return (*settings, *readmission_settings(job, mark))


def _is_own_share(resource: Tres, mark: JobAnnotation) -> bool:
    """Return whether *resource* is the share or slice that a job with *mark* has in place of its GPU."""
    return is_share(resource) or (is_gpu(resource) and resource.kind is not None and resource.kind == mig_type_of(mark))


def _restored_mark(mark: JobAnnotation, gpu: str, reason: str) -> JobAnnotation:
    after = ", ".join(filter(None, (f"gres/{gpu}", start_in(mark))))
    return replace(mark, code="BACK", before=mark.after, after=after, reasons=reason)


def _mark_setting(job: AnnotatedJob, new: JobAnnotation) -> str:
    """Return the setting that puts *new* in the place of the job's mark, within Slurm's limit."""
    return f"AdminComment={with_annotation(job.mark, new, FIELD_BYTES)}"
