"""Jobs that hold or await a share, or a MIG slice, instead of a whole GPU, and which of them seem unable to start.

A pending job is stuck if a limit on its share stops it, if a whole node that it may use is idle and not planned for
another job, or if its share binds it to GPU types while another GPU that its original request could use is free; each
such GPU counts for one job. This may be wrong for a moment, so whoever acts on it first sees it hold for some time. A
job that is then restored has its user's request again, so an error costs a share and no job.

The requests of all pending jobs are read by one squeue: one scontrol per job would mean thousands of calls a minute.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpusage.store.annotation import parse_annotation
from gpusage_hooks.types import OF_USER, AnnotatedJob, JobState
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.nodes import NodeState, free_whole_gpus, parse_node
from gpusage_slurm.jobs.placement import (
    NULL,
    WAITS_FOR_NODES,
    avoided_node_reason,
    avoided_while_pending,
    could_run_on_whole_gpu,
    is_bound,
    may_run_on,
    mig_type_of,
    other_types_in,
    user_constraint,
)
from gpusage_slurm.jobs.queue import (
    STATES,
    Row,
    annotated_job,
    base_id,
    parse_squeue_rows,
    possible_shares,
    requested_tres,
    squeue_rows_of,
)
from gpusage_slurm.tres import parse_mib

_PENDING_COLUMNS = (("JobArrayID", 64), ("NumCPUs", 12), ("MinMemory", 16), ("ReqNodes", 1100), ("ExcNodes", 1100))
"""A longer list is cut. In part it is then its user's, for no mark holds as much, and such a job is left as it is."""
_FORMAT_FIELDS = "iCmnx"
"""The same for `squeue --format`; its long names know no excluded nodes before 24.11."""
_UNKNOWN: scontrol.Line = {"ReqNodeList": "unknown"}
"""Of a job that waits no more."""

_COLUMNS = (
    *(("JobArrayID", 64), ("UserName", 64), ("StateCompact", 4), ("Reason", 64), ("NodeList", 256)),
    *(("Partition", 256), ("tres-alloc", 256), ("SchedNodes", 128), ("Feature", 1100), ("admin_comment", 1100)),
    *(("QOS", 128), ("Account", 128), ("UserID", 16)),
)
_LIMITED = re.compile(r"QOSMinGRES|(?:QOS|Assoc)MaxGRESPer(?:Job|Node)")
_QUEUED = ("Priority", "Resources", "None")


def find_shared_jobs(states: Sequence[JobState]) -> tuple[AnnotatedJob, ...]:
    """Return the jobs in any of *states* that hold or wait for a share in place of a whole GPU; see the hook.

    Raises:
        RequestError: slurmctld does not answer.
    """
    wanted = f"--states={','.join(code for state in states for code in STATES.get(state, ()))}"
    bases = list(dict.fromkeys(map(base_id, possible_shares(wanted))))

    ours = []
    for row in squeue_rows_of(bases, wanted, columns=_COLUMNS):
        mark = parse_annotation(row["admin_comment"])
        if mark is not None and mark.of_share:
            # A job that has its whole GPU back, or runs on a slice, is done with.
            waits_for_slice = row["StateCompact"] == "PD" and mig_type_of(mark)
            waits_for_type = row["StateCompact"] == "PD" and other_types_in(mark)
            if waits_for_slice or waits_for_type or not mark.after.startswith("gres/gpu"):
                ours.append(row)
    return tuple(_with_stuck_reasons(ours))


def _with_stuck_reasons(job_rows: Sequence[Row]) -> Iterator[AnnotatedJob]:
    """Yield each job, with why it is stuck."""
    nodes, idle = _ClusterNodes(), None
    users: dict[str, set[str]] = {}
    for row in job_rows:
        users.setdefault(row.get("NodeList", ""), set()).add(row["UserName"])
    requests = _PendingRequests(row for row in job_rows if row["StateCompact"] == "PD")
    for row in job_rows:
        reason, needs_whole, other_types = "", False, tuple[str, ...]()
        if row["StateCompact"] == "PD":
            # The nodes are read for the first job that needs them, if any does.
            if idle is None and row["Reason"] in _QUEUED:
                idle = nodes.idle

            reason, needs_whole = avoided_node_reason(row, nodes.named(avoided_while_pending(row)), users)
            if not reason:
                # What no idle node could run without its other demands cannot run with them, and they cost a question.
                reason = stuck_reason(row, idle or (), {})
                if reason and row["Reason"] in _QUEUED:
                    reason = stuck_reason(row, idle or (), requests.request_of(row))
            reason = reason or _binding_reason(row, nodes, requests)
            if other_types := other_types_in(parse_annotation(row["admin_comment"])):
                reason, other_types = _other_type_reason(row, other_types, nodes, requests)

        account = f"account={row.get('Account')}"
        scopes = (f"qos={row.get('QOS')}", account, f"{account}{OF_USER}{row.get('UserID')}")
        is_waiting = row["StateCompact"] == "PD"
        yield replace(
            annotated_job(row, reason),
            needs_whole_gpu=needs_whole,
            other_types=other_types,
            scopes=scopes if is_waiting and not other_types else (),
        )


def stuck_reason(row: Row, nodes: Iterable[NodeState], job: scontrol.Line) -> str:
    """Return why the waiting job in *row* seems unable to start, as a clause; empty where it does not.

    Args:
        row: By the columns of `squeue`.
        nodes: All of them.
        job: Its fields by the names of `scontrol show job`.
    """
    if _LIMITED.fullmatch(row["Reason"]):
        return f"a limit of the site stops its share ({row['Reason']})"
    if row["Reason"] not in _QUEUED:
        return ""
    idle = next((node.name for node in nodes if _could_run(row, node, job)), None)
    return f"node {idle} is idle and could run it, and yet it waits ({row['Reason']})" if idle else ""


def _could_run(row: Row, node: NodeState, job: scontrol.Line) -> bool:
    """Return whether *node* is idle as a whole, and large and close enough for the job; where in doubt, it is not."""
    # Slurm keeps a planned node free for another job, unless it planned this one there.
    if not node.idle or (node.planned and node.name != row["SchedNodes"]):
        return False
    resources, mark = requested_tres(row), parse_annotation(row["admin_comment"])
    features = job.get("Features", NULL)
    return (
        (mark is None or mig_type_of(mark) is None)  # of slices `_binding_reason` says more
        and bool({*row["Partition"].split(",")} & {*node.partitions})
        and node.has_shares
        and (parse_mib(resources.get("mem", "0")) or 0.0) <= node.memory_mib
        and int(resources.get("cpu", "1")) <= node.cpu_count
        and may_run_on(job, mark, node.name)
        and (features == NULL or {*features.split("&")} <= {*node.features})
    )


def _binding_reason(row: Row, nodes: _ClusterNodes, requests: _PendingRequests) -> str:
    """Return why the job in *row* waits in vain for the GPU types of its share; empty where it does not."""
    if not row["Reason"].startswith(WAITS_FOR_NODES) or not is_bound(parse_annotation(row["admin_comment"])):
        return ""
    free = nodes.free
    node = node_outside_binding(row, free, requests.request_of(row)) if free else None
    if node is None:
        return ""

    # The next job of this pass must not be let go for the same GPU.
    nodes.reserve_gpu(node)
    return f"node {node.name} has a GPU free for it, and yet it waits for the GPU types of its share ({row['Reason']})"


def node_outside_binding(row: Row, nodes: Iterable[NodeState], job: scontrol.Line) -> NodeState | None:
    """Return the node with a GPU for the job in *row* as its user wrote it, where its share binds it elsewhere.

    Args:
        row: By the columns of `squeue`.
        nodes: Those with a GPU that nobody uses.
        job: Its fields by the names of `scontrol show job`.
    """
    mark = parse_annotation(row["admin_comment"])
    own = user_constraint(mark, job.get("Features", "")) if mark else None
    return None if own is None else next((node for node in nodes if could_run_on_whole_gpu(node, job, own, mark)), None)


def _other_type_reason(
    row: Row, other_types: tuple[str, ...], nodes: _ClusterNodes, requests: _PendingRequests
) -> tuple[str, tuple[str, ...]]:
    """Return why the job in *row* should name another GPU type than it does, and *other_types*, that one first.

    The reason is empty where none of these is free for it, or its own is.
    """
    mark = parse_annotation(row["admin_comment"])
    if mark is None or not row["Reason"].startswith(WAITS_FOR_NODES) or not nodes.free:
        return "", other_types
    named, job = mark.after.partition(", ")[0].rpartition(":1")[0].rpartition(":")[2], requests.request_of(row)
    own = job.get("Features", NULL).replace(NULL, "")
    for gpu_type in (named, *other_types):
        for node in nodes.free:
            if could_run_on_whole_gpu(node, job, own, mark, gpu_type):
                nodes.reserve_gpu(node)
                why = f"node {node.name} has a {gpu_type} free for it, and yet it waits for {named} ({row['Reason']})"
                left = tuple(each for each in other_types if each != gpu_type)
                return ("", other_types) if gpu_type == named else (why, (gpu_type, *left))
    return "", other_types


class _PendingRequests:
    """The requests of waiting jobs, read once, and only where a decision depends on them.

    Args:
        waiting: By the columns ``JobArrayID``, ``Partition``, ``Feature`` and ``tres-alloc`` of `squeue`.
    """

    def __init__(self, waiting: Iterable[Row]) -> None:
        self._waiting = {row["JobArrayID"]: row for row in waiting}
        self._requests_by_job: Mapping[str, scontrol.Line] | None = None

    def request_of(self, row: Row) -> scontrol.Line:
        """Return the request of the job in *row*.

        Raises:
            RequestError: slurmctld does not answer.
        """
        if self._requests_by_job is None:
            self._requests_by_job = dict(self._read_requests())
        return self._requests_by_job.get(row["JobArrayID"], _UNKNOWN)

    def _read_requests(self) -> Iterator[tuple[str, scontrol.Line]]:
        """Yield each job with its fields by the names of `scontrol show job`."""
        form = "".join(f"%{width}{field}" for (_, width), field in zip(_PENDING_COLUMNS, _FORMAT_FIELDS, strict=True))
        for which in scontrol.job_id_options([*dict.fromkeys(map(base_id, self._waiting))]):
            text = scontrol.run_bytes("squeue", "--noheader", "--all", "--states=PENDING", which, f"--format={form}")
            for pending in parse_squeue_rows(text, _PENDING_COLUMNS):
                row = self._waiting.get(pending["JobArrayID"])
                if row is None:
                    continue

                # Of a job that says nothing of memory, tres-alloc has all of a node's. Nothing shows whether MinMemory
                # is of a core or of a node; tres-alloc has the sum of either.
                wants_memory = pending["MinMemory"].strip("0KMGTP") != ""
                yield (
                    pending["JobArrayID"],
                    {
                        "Partition": row["Partition"],
                        "Features": row["Feature"] or NULL,
                        "NumCPUs": pending["NumCPUs"],
                        "MinMemoryNode": requested_tres(row).get("mem", "0") if wants_memory else "0",
                        "ReqNodeList": pending["ReqNodes"] or NULL,
                        "ExcNodeList": pending["ExcNodes"] or NULL,
                    },
                )


class _ClusterNodes:
    """The nodes, read once, and only where a decision about a job depends on them."""

    def __init__(self) -> None:
        self._states_by_node: dict[str, NodeState] | None = None
        self._useful: tuple[NodeState, ...] = ()
        self._free: Counter[str] = Counter()

    @property
    def idle(self) -> tuple[NodeState, ...]:
        """Nodes that are idle as a whole, and have shares."""
        self._load()
        return tuple(node for node in self._useful if node.idle and node.has_shares)

    @property
    def free(self) -> tuple[NodeState, ...]:
        """Nodes with a GPU that nobody uses, and that no job was found for."""
        self._load()
        return tuple(node for node in self._useful if self._free[node.name] > 0)

    def named(self, names: Iterable[str]) -> tuple[NodeState, ...]:
        """Return the nodes with these *names*."""
        return tuple(self._load()[name] for name in names if name in self._load())

    def reserve_gpu(self, node: NodeState) -> None:
        """Count a GPU of *node* as taken by a job."""
        self._free[node.name] -= 1

    def _load(self) -> dict[str, NodeState]:
        if self._states_by_node is None:
            nodes = tuple(map(parse_node, scontrol.nodes()))
            self._free = Counter({node.name: free_whole_gpus(node) for node in nodes if node.open})
            self._useful = tuple(node for node in nodes if node.idle or self._free[node.name])
            self._states_by_node = {node.name: node for node in nodes}
        return self._states_by_node
