"""Usage of ended jobs, from the reports in nodes' comments, completed from slurmctld's record of each job.

A report holds measurements. The job's user, name, exit and mark come from slurmctld, or from slurmdbd if slurmctld has
forgotten the job. A job without a mark of ours has no number of a decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from gpusage.boundary.printable_text import one_line
from gpusage.node.sampler.usage_reports import parse_usage_reports
from gpusage.store.annotation import parse_annotation
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Outcome, Usage
from gpusage_slurm import scontrol
from gpusage_slurm.jobs.queue import Columns, Row, is_interrupted, sacct_rows_of, squeue_rows_of

_COLUMNS = (
    *(("JobArrayID", 64), ("JobID", 16), ("UserName", 64), ("State", 16), ("exit_code", 16), ("Name", 128)),
    *(("UserID", 16), ("Account", 128), ("Partition", 128), ("admin_comment", 1100)),
)
_WITH_COMMENT = (("JobArrayID", 64), ("JobID", 16), ("Comment", 1100))
_OUTCOMES: Mapping[str, Outcome] = MappingProxyType(
    {
        "COMPLETED": "completed",
        "FAILED": "failed",
        **dict.fromkeys(("CANCELLED", "PREEMPTED"), "cancelled"),
        **dict.fromkeys(("TIMEOUT", "DEADLINE"), "timed_out"),
        **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"), "interrupted"),
    }
)
"""By Slurm's words; its OUT_OF_MEMORY is the host's memory, not the GPU's."""


def collect_usage(catalogue: GpuCatalogue) -> tuple[Usage, ...]:
    """Return the usage of recently ended jobs; see the hook.

    Raises:
        RequestError: slurmctld does not answer.
    """
    nodes = scontrol.run("scontrol", "show", "nodes", "--oneliner").splitlines()
    reports = [
        replace(usage, sampled_on=node.partition(" ")[0].removeprefix("NodeName="))
        for node in nodes
        for usage in parse_usage_reports(node)
    ]
    rows = _rows_by_job([usage.job_id for usage in reports]) if reports else {}

    complete = []
    for usage in reports:
        row = rows.get(usage.job_id)

        # While an epilog still runs nothing shows how the job ended; the report stays for the next pass.
        if row is None or row["State"] == "COMPLETING":
            continue
        mark = parse_annotation(row["admin_comment"])
        gpu, granted = known_gpu(catalogue, usage.gpu), usage.granted
        if gpu and catalogue.find(gpu).parent_gpu:
            granted = replace(granted, division="slice", memory_limit_bytes=catalogue.find(gpu).memory_bytes)
        whole = replace(
            usage,
            number=mark.number if mark else "",
            job_id=row["JobArrayID"],
            user=row["UserName"],
            user_id=row["UserID"],
            account=row["Account"],
            partition=row["Partition"],
            job_name=one_line(row["Name"]),
            gpu=gpu or usage.gpu,
            granted=granted,
            outcome=usage.outcome if usage.outcome != "unknown" else outcome_of(row),
        )
        complete.append(whole)
    return tuple(complete)


def outcome_of(row: Row) -> Outcome:
    """Return the outcome of a job by what `squeue` or `sacct` says, such as ``CANCELLED by 1000``."""
    outcome = _OUTCOMES.get(row.get("State", "").partition(" ")[0], "unknown")
    if outcome == "failed" and is_interrupted(row.get("exit_code", ""), row.get("Comment", "")):
        return "interrupted"
    return outcome


def _rows_by_job(job_ids: Sequence[str]) -> dict[str, Row]:
    """Return the rows of the jobs, by their plain numbers."""
    wanted = [*dict.fromkeys(job_ids)]
    known = {row["JobID"]: row for row in _queued_rows(wanted)}

    # The comment says whether a program was missing. It is read apart from the rest, as one with a line break hides its
    # row. An array is listed with all its tasks, one of which may have become a job of its own in between.
    failed = [job_id for job_id, row in known.items() if row["State"] == "FAILED"]
    commented = [row for row in _queued_rows(failed, _WITH_COMMENT) if row["JobID"] in known]
    known |= {row["JobID"]: {**known[row["JobID"]], **row} for row in commented}

    # Jobs that slurmctld has forgotten, by the names of the columns above.
    missing = [job_id for job_id in wanted if job_id not in known]
    whose = ("UID", "Account", "Partition", "AdminComment")
    for cells in sacct_rows_of(missing, ("JobID", "JobIDRaw", "User", "State", "ExitCode", "JobName", *whose)):
        row = dict(zip((name for name, _ in _COLUMNS), cells, strict=True))
        known[row["JobID"]] = row
    return known


def _queued_rows(job_ids: Sequence[str], columns: Columns = _COLUMNS) -> Iterator[Row]:
    """Yield the jobs as slurmctld has them, without any that it has forgotten."""
    try:
        yield from squeue_rows_of(job_ids, "--states=all", columns=columns)
    except RequestError as error:  # where one job alone is asked for, as of the last ones
        if scontrol.UNKNOWN_JOB not in str(error):
            raise
