"""Jobs whose whole GPU became a share, or that wait for a slice (MIG) in its place, and which seem unable to start.

A waiting job is stuck where a limit on its own share stops it, where a whole node that it may use is idle and planned
for nobody else, or where its share binds it to GPU types while another GPU, which its user's request could have, is
free; each such GPU counts for one job. That may be wrong for a while, so whoever acts on it first sees it hold for some
time; a job that is then turned back has what its user asked for, so an error costs a share and no job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gpusage.mark import parse_mark
from gpusage_hooks.types import JobState, MarkedJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.pools import NodeState, free_whole_gpus, parse_node
from gpusage_slurm.jobs.bound import WAITS_FOR_NODES, could_run_whole, is_bound, mib, own_constraint, slice_of
from gpusage_slurm.jobs.demands import Demands
from gpusage_slurm.jobs.exclusion import may_run_on
from gpusage_slurm.jobs.kept_off import avoided_nodes, kept_waiting
from gpusage_slurm.jobs.rows import STATES, Row, asked, base_id, marked_job, rows, rows_of
from gpusage_slurm.tres import is_gpu, is_share, parse_list

_FIRST = (("JobArrayID", 64), ("tres-per-node", 128))
_COLUMNS = (
    *(("JobArrayID", 64), ("UserName", 64), ("StateCompact", 4), ("Reason", 64), ("NodeList", 256)),
    *(("Partition", 256), ("tres-alloc", 256), ("SchedNodes", 128), ("Feature", 1100), ("admin_comment", 1100)),
)
_LIMITED = re.compile(r"QOSMinGRES|(?:QOS|Assoc)MaxGRESPer(?:Job|Node)")
_QUEUED = ("Priority", "Resources", "None")


def shared_jobs(states: Sequence[JobState]) -> tuple[MarkedJob, ...]:
    """Return the jobs in one of *states* that hold or wait for a share in place of a whole GPU; see the hook.

    Two questions, so that the long answer is about few jobs.

    Raises:
        RequestError: slurmctld does not answer.
    """
    wanted = f"--states={','.join(code for state in states for code in STATES.get(state, ()))}"
    shares = [row["JobArrayID"] for row in rows(wanted, columns=_FIRST) if _may_be_part(row["tres-per-node"])]
    bases = list(dict.fromkeys(base_id(name) for name in shares))
    return tuple(_judged([row for row in rows_of(bases, wanted, columns=_COLUMNS) if _is_ours(row)]))


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


def waits_bound(row: Row, nodes: Iterable[NodeState], job: scontrol.Line) -> NodeState | None:
    """Return the node with a GPU for the job in *row* as its user wrote it, where its share binds it elsewhere.

    Args:
        row: By the columns of `squeue`.
        nodes: Those with a GPU that nobody uses.
        job: What `scontrol show job` says of it.
    """
    mark = parse_mark(row["admin_comment"])
    own = own_constraint(mark, job.get("Features", "")) if mark else None
    return None if own is None else next((node for node in nodes if could_run_whole(node, job, own, mark)), None)


class _Nodes:
    """The nodes, asked for only where the judgement of a job depends on them."""

    def __init__(self) -> None:
        self._known: dict[str, NodeState] | None = None
        self._useful: tuple[NodeState, ...] = ()
        self._free: Counter[str] = Counter()

    @property
    def idle(self) -> tuple[NodeState, ...]:
        """Those that are idle as a whole, and have shares."""
        self._look()
        return tuple(node for node in self._useful if node.idle and node.has_shares)

    @property
    def free(self) -> tuple[NodeState, ...]:
        """Those with a GPU that nobody uses, and that no job was found for."""
        self._look()
        return tuple(node for node in self._useful if self._free[node.name] > 0)

    def named(self, names: Iterable[str]) -> tuple[NodeState, ...]:
        """Return those with these *names*."""
        return tuple(self._look()[name] for name in names if name in self._look())

    def take(self, node: NodeState) -> None:
        """Count one of the GPUs of *node* as found for a job."""
        self._free[node.name] -= 1

    def _look(self) -> dict[str, NodeState]:
        if self._known is None:
            nodes = tuple(map(parse_node, scontrol.nodes()))
            self._free = Counter({node.name: free_whole_gpus(node) for node in nodes if node.open})
            self._useful = tuple(node for node in nodes if node.idle or self._free[node.name])
            self._known = {node.name: node for node in nodes}
        return self._known


def _judged(job_rows: Sequence[Row]) -> Iterator[MarkedJob]:
    """Yield each job, with why it is stuck."""
    nodes, idle = _Nodes(), None
    demands = Demands(row for row in job_rows if row["StateCompact"] == "PD")
    for row in job_rows:
        reason = ""
        if row["StateCompact"] == "PD":
            if idle is None and row["Reason"] in _QUEUED:
                idle = nodes.idle
            waits = kept_waiting(row, nodes.named(avoided_nodes(row)))
            reason = waits or _judgement(row, idle or (), demands) or _released(row, nodes, demands)
        yield marked_job(row, reason)


def _judgement(row: Row, idle: Sequence[NodeState], demands: Demands) -> str:
    reason = stuck(row, idle, {})
    if reason and row["Reason"] in _QUEUED:
        return stuck(row, idle, demands.of(row))
    return reason


def _released(row: Row, nodes: _Nodes, demands: Demands) -> str:
    """Return why the job in *row* waits in vain for the GPU types of its share; empty where it does not."""
    if not row["Reason"].startswith(WAITS_FOR_NODES) or not is_bound(parse_mark(row["admin_comment"])):
        return ""
    free = nodes.free
    node = waits_bound(row, free, demands.of(row)) if free else None
    if node is None:
        return ""
    nodes.take(node)
    return f"node {node.name} has a GPU free for it, and yet it waits for the GPU types of its share ({row['Reason']})"


def _may_be_part(resources: str) -> bool:
    """Tell whether *resources* have a share, or a GPU of a type, which may be a slice of ours."""
    return any(is_share(resource) or (is_gpu(resource) and resource.kind) for resource in parse_list(resources))


def _is_ours(row: Row) -> bool:
    """Tell whether the job in *row* has a share of ours, or waits for a slice; one that has its slice needs nobody."""
    mark = parse_mark(row["admin_comment"])
    if mark is None or not mark.of_share:
        return False
    waits = row["StateCompact"] == "PD"
    return bool(waits and slice_of(mark)) or not mark.after.startswith("gres/gpu")


def _could_run(row: Row, node: NodeState, job: scontrol.Line) -> bool:
    """Tell whether *node* is idle as a whole, and large and close enough for the job; where in doubt, it is not."""
    if not node.idle or (node.planned and node.name != row["SchedNodes"]):
        return False
    resources = asked(row)
    features = job.get("Features", "(null)")
    return (
        bool({*row["Partition"].split(",")} & {*node.partitions})
        and node.has_shares
        and mib(resources.get("mem", "0")) <= node.memory_mib
        and int(resources.get("cpu", "1")) <= node.cpu_count
        and may_run_on(job, parse_mark(row["admin_comment"]), node.name)
        and (features == "(null)" or {*features.split("&")} <= {*node.features})
    )
