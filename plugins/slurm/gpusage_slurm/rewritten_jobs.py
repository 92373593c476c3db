"""Jobs whose whole GPU became a share, and which of those that wait seem unable to start.

A waiting job is stuck where a limit on its own share stops it, or where a whole node that it may use is idle and
planned for nobody else. That may be wrong for a while, so whoever acts on it first sees it hold for some time; a job
that is then turned back has what its user asked for, so an error costs a share and no job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gpusage.mark import parse_mark
from gpusage_hooks.types import JobState, MarkedJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster import NodeState, parse_node
from gpusage_slurm.jobs import STATES, Row, base_id, marked_job, rows
from gpusage_slurm.tres import is_share, parse_list

_FIRST = (("JobArrayID", 64), ("tres-per-node", 128))
_COLUMNS = (
    *(("JobArrayID", 64), ("UserName", 64), ("StateCompact", 4), ("Reason", 64)),
    *(("Partition", 256), ("tres-alloc", 256), ("SchedNodes", 128), ("admin_comment", 1100)),
)
_MOST_AT_ONCE = 500
_LIMITED = re.compile(r"QOSMinGRES|(?:QOS|Assoc)MaxGRESPer(?:Job|Node)")
_QUEUED = ("Priority", "Resources", "None")
_UNITS = {"": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}  # MiB
_AMOUNT = re.compile(r"(?P<number>[0-9.]+)(?P<unit>[MGTP]?)")


def shared_jobs(states: Sequence[JobState]) -> tuple[MarkedJob, ...]:
    """Return the jobs in one of *states* that hold or wait for a share in place of a whole GPU; see the hook.

    Two questions, so that the long answer is about few jobs.

    Raises:
        RequestError: slurmctld does not answer.
    """
    wanted = f"--states={','.join(code for state in states for code in STATES.get(state, ()))}"
    shares = [row["JobArrayID"] for row in rows(wanted, columns=_FIRST) if _has_share(row["tres-per-node"])]
    bases = list(dict.fromkeys(base_id(name) for name in shares))
    shared = []
    for begin in range(0, len(bases), _MOST_AT_ONCE):
        which = f"--jobs={','.join(bases[begin : begin + _MOST_AT_ONCE])}"
        shared += [row for row in rows(wanted, which, columns=_COLUMNS) if _is_ours(row)]
    return tuple(_judged(shared))


def stuck(row: Row, nodes: Iterable[NodeState], job: scontrol.Line) -> str:
    """Return why the waiting job in *row* seems unable to start, one clause; empty where it does not.

    Args:
        row: By the columns of `squeue`.
        nodes: All of them.
        job: What `scontrol show job` says of it.
    """
    if _LIMITED.fullmatch(row["Reason"]):
        return f"a limit of the site stops its share ({row['Reason']})"
    if row["Reason"] not in _QUEUED:
        return ""
    idle = next((node.name for node in nodes if _could_run(row, node, job)), None)
    return f"node {idle} is idle and could run it, and yet it waits ({row['Reason']})" if idle else ""


def _judged(job_rows: Sequence[Row]) -> Iterator[MarkedJob]:
    """Yield each job, with why it is stuck; the nodes are asked for only where that depends on them."""
    nodes: tuple[NodeState, ...] | None = None
    for row in job_rows:
        reason = ""
        if row["StateCompact"] == "PD":
            if nodes is None and row["Reason"] in _QUEUED:
                nodes = tuple(node for node in map(parse_node, scontrol.nodes()) if node.idle and node.has_shares)
            reason = stuck(row, nodes or (), {})
            if reason and row["Reason"] in _QUEUED:
                reason = stuck(row, nodes or (), scontrol.job(base_id(row["JobArrayID"])))
        yield marked_job(row, reason)


def _has_share(resources: str) -> bool:
    return any(is_share(resource) for resource in parse_list(resources))


def _is_ours(row: Row) -> bool:
    mark = parse_mark(row["admin_comment"])
    return mark is not None and mark.of_share


def _could_run(row: Row, node: NodeState, job: scontrol.Line) -> bool:
    """Tell whether *node* is idle as a whole, and large and close enough for the job; where in doubt, it is not."""
    if not node.idle or (node.planned and node.name != row["SchedNodes"]):
        return False
    asked = dict(word.split("=", 1) for word in row["tres-alloc"].split(",") if "=" in word)
    wishes = [job.get(name, "(null)") for name in ("ReqNodeList", "ExcNodeList")]
    features = job.get("Features", "(null)")
    return (
        bool({*row["Partition"].split(",")} & {*node.partitions})
        and node.has_shares
        and _mib(asked.get("mem", "0")) <= node.memory_mib
        and int(asked.get("cpu", "1")) <= node.cpu_count
        and all(wish == "(null)" for wish in wishes)
        and (features == "(null)" or {*features.split("&")} <= {*node.features})
    )


def _mib(text: str) -> float:
    match = _AMOUNT.fullmatch(text)
    return float(match["number"]) * _UNITS[match["unit"]] if match else 0.0
