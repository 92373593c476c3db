"""Jobs that wait for a GPU and brought no description of their model, as slurmctld has them.

Invariants:

1. What decides about rights, the job's user, is read from columns of fixed width, where no text of a user's can pass
   for it.
2. A user's own words, the comment and the folder, are each all that a command prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpusage.service.monitoring.round_robin import round_robin_by_user
from gpusage.store.annotation import UNNAMED, parse_annotation
from gpusage_hooks.comment import parse_comment
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.jobs.placement import parse_mib, read_excluded_nodes
from gpusage_slurm.jobs.queue import Row, base_id, squeue_rows
from gpusage_slurm.submission.missing_card import may_be_read_later
from gpusage_slurm.submission.request import EXCLUSIVE, describe_request
from gpusage_slurm.submission.script import gpusage_directives, incompatible_srun_option, why_unrepeatable

_GRES_COLUMNS = {
    "tres_per_node": "tres-per-node",
    "tres_per_job": "tres-per-job",
    "tres_per_socket": "tres-per-socket",
    "tres_per_task": "tres-per-task",
}
_COLUMN_OF = {
    **_GRES_COLUMNS,
    "tres_bind": "tres-bind",
    "tres_freq": "tres-freq",
    "cpus_per_tres": "cpus-per-tres",
    "mem_per_tres": "mem-per-tres",
    "features": "Feature",
    "prefer": "Prefer",
    "partition": "Partition",
    "req_nodes": "ReqNodes",
    "reservation": "Reservation",
    "qos": "QOS",
    "min_nodes": "NumNodes",
    "num_tasks": "NumTasks",
    "min_cpus": "MinCpus",
    "cpus_per_task": "cpus-per-task",
    "pn_min_tmp_disk": "MinTmpDisk",
}
"""The fields that job_submit sees, and where `squeue` shows them."""

_LINE_OF = {"ntasks_per_tres": "NtasksPerTRES", "deadline": "Deadline"}
_IN_LINE = (*_LINE_OF.values(), "MinMemoryNode", "MinMemoryCPU", "Exclusive", "Requeue", "StdOut", "StdErr")
"""What `squeue` of 22.05 does not show; a job whose user writes such a word into its name or comment stays as it is."""

_FIRST = (("JobArrayID", 64), ("UserID", 16), ("StateCompact", 4), ("BatchFlag", 4), ("admin_comment", 1100))
_COLUMNS = (
    *(("JobArrayID", 64), ("UserID", 16), ("StateCompact", 4), ("BatchFlag", 4), ("HetJobOffset", 12)),
    ("OverSubscribe", 12),
    *((column, 320) for column in _COLUMN_OF.values()),
    ("admin_comment", 1100),
)
_NOTHING = ("", "N/A", "(null)", "*")
_WHOLE_NODE = "NO"


@dataclass(frozen=True, slots=True, kw_only=True)
class LateJob:
    """A job whose model may be read now.

    Attributes:
        job_id: As `squeue` has it; the tasks of an array that wait are one.
        uid: Its user.
        folder: Where it will run, and where a relative path to a model begins.
        comment: What its user says.
        fields: The request as job_submit would see it.
        admin_comment: Where its mark stands, if it has one.
    """

    job_id: str
    uid: int
    folder: str
    comment: str
    fields: Mapping[str, str]
    admin_comment: str


def late_job_ids() -> tuple[str, ...]:
    """Return the jobs that brought no description of their model: batch jobs that wait, others that run as well.

    Each user's first comes before anybody's second.

    Raises:
        RequestError: slurmctld does not answer.
    """
    gres_columns = tuple((column, 128) for column in _GRES_COLUMNS.values())
    listed = squeue_rows("--states=PENDING,RUNNING", columns=(*_FIRST[:-1], *gres_columns, _FIRST[-1]))
    late = {row["JobArrayID"]: row for row in listed if _is_late(row)}
    rest = {job_id for job_id, row in late.items() if not row["admin_comment"] or _is_unnamed(row)}
    unmarked = [job_id for job_id in _jobs_that_name_a_model() if job_id in rest] if rest else []
    marked = [job_id for job_id in late if job_id not in rest]
    return tuple(round_robin_by_user({job_id: late[job_id]["UserID"] for job_id in (*marked, *unmarked)}))


def read_late_job(job_id: str) -> LateJob | None:
    """Return the job as it is now; ``None`` where it waits no more, or was marked or changed meanwhile.

    Raises:
        RequestError: slurmctld does not answer, or no longer knows it.
    """
    which = f"--jobs={base_id(job_id)}"
    listed = {row["JobArrayID"]: row for row in squeue_rows("--states=PENDING,RUNNING", which, columns=_COLUMNS)}
    row = listed.get(job_id)
    # Of an array that runs in part squeue prints one comment for each of its parts, all alike.
    if row is None or not _is_late(row) or not row["UserID"].isdigit() or len(listed) > 1:
        return None
    line = scontrol.job(base_id(job_id), _IN_LINE)
    if line is None:
        return None
    fields = {**_fields(row, line), "exc_nodes": read_excluded_nodes(base_id(job_id))}
    mark = parse_annotation(row["admin_comment"])
    if mark and mark.before and mark.before != describe_request(fields):
        return None  # its user has asked for something else since, and will have meant it
    script = _script(job_id) if row["BatchFlag"] == "1" else ""
    comment = _squeue_text(which, "Comment:1100")
    comment = comment if names_model(comment) else gpusage_directives(script) or comment
    reason = why_unrepeatable(
        script, requeue=line.get("Requeue", ""), output=line.get("StdOut", ""), errors=line.get("StdErr", "")
    )
    return LateJob(
        job_id=job_id,
        uid=int(row["UserID"]),
        folder=_squeue_text(which, "WorkDir:4096"),
        comment=comment,
        fields={
            **fields,
            "comment": comment,
            "script_options": incompatible_srun_option(script),
            "unrepeatable": reason,
        },
        admin_comment=row["admin_comment"],
    )


def _script(job_id: str) -> str:
    return scontrol.run("scontrol", "write", "batch_script", base_id(job_id), "-")


def _is_late(row: Row) -> bool:
    if not any("gpu" in row[column] for column in _GRES_COLUMNS.values()):
        return False
    if row["BatchFlag"] == "1" and row["StateCompact"] != "PD":
        return False
    mark = parse_annotation(row["admin_comment"])
    return mark is None or (
        mark.code == "KEEP" and (not mark.number or may_be_read_later(mark.reasons) or _is_unnamed(row))
    )


def _is_unnamed(row: Row) -> bool:
    """Return whether the job named no model when its mark was written; its user may have named one since."""
    mark = parse_annotation(row["admin_comment"])
    return mark is not None and mark.reasons.startswith(UNNAMED)


def _jobs_that_name_a_model() -> Iterator[str]:
    """Yield the jobs whose comment seems to name a model; a user may write a line here that passes for another job."""
    for row in squeue_rows("--states=PENDING,RUNNING", columns=(("JobArrayID", 64), ("Comment", 1100))):
        if names_model(row["Comment"]):
            yield row["JobArrayID"]


def names_model(comment: str) -> bool:
    """Return whether there is a model to read; what is malformed is for gpusaged to refuse."""
    try:
        model_request = parse_comment(comment)
    except RequestError:
        return False
    return model_request is not None and model_request.enabled


def _squeue_text(which: str, column: str) -> str:
    text = scontrol.run("squeue", "--noheader", "--all", which, f"--Format={column}").strip()
    return "" if text in _NOTHING else text


def _fields(row: Row, line: scontrol.Line) -> dict[str, str]:
    """Return the job's fields as job_submit would see them."""
    fields = {name: row[column] for name, column in _COLUMN_OF.items()}
    fields |= {name: line.get(word, "") for name, word in _LINE_OF.items()}
    fields["max_nodes"] = fields["min_nodes"].rpartition("-")[2]
    fields["min_nodes"] = fields["min_nodes"].partition("-")[0]
    # From 26.05 on OverSubscribe shows only what partitions do, and the job has a word of its own.
    is_exclusive = line["Exclusive"] != "NO" if "Exclusive" in line else row["OverSubscribe"] == _WHOLE_NODE
    fields["shared"] = EXCLUSIVE if is_exclusive else ""
    fields["script"] = row["BatchFlag"]
    fields["het"] = "0" if row["HetJobOffset"] in _NOTHING else "1"
    fields["min_mem_per_node"] = f"{parse_mib(line.get('MinMemoryNode', '')):.0f}"
    fields["min_mem_per_cpu"] = f"{parse_mib(line.get('MinMemoryCPU', '')):.0f}"
    fields["user_id"] = row["UserID"]
    return {name: "" if value in _NOTHING else value for name, value in fields.items()}
