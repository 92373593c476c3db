"""What waiting jobs ask of their nodes: one question for all of them, by the words of `scontrol show job`.

A question for each job would cost slurmctld thousands a minute where thousands wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpusage_slurm import scontrol
from gpusage_slurm.jobs.exclusion import NOTHING
from gpusage_slurm.jobs.rows import Row, asked, base_id, parse_rows

_COLUMNS = (("JobArrayID", 64), ("NumCPUs", 12), ("MinMemory", 16), ("ReqNodes", 1100), ("ExcNodes", 1100))
"""A longer list is cut. In part it is then its user's, for no mark holds as much, and such a job is left as it is."""
_LETTERS = "iCmnx"
"""The same for `squeue --format`; its long names know no excluded nodes before 24.11."""
_UNKNOWN: scontrol.Line = {"ReqNodeList": "unknown"}
"""Of a job that waits no more."""


class Demands:
    """The demands of waiting jobs, asked for once, and only where somebody wants to know.

    Args:
        waiting: By the columns ``JobArrayID``, ``Partition``, ``Feature`` and ``tres-alloc`` of `squeue`.
    """

    def __init__(self, waiting: Iterable[Row]) -> None:
        self._waiting = {row["JobArrayID"]: row for row in waiting}
        self._known: Mapping[str, scontrol.Line] | None = None

    def of(self, row: Row) -> scontrol.Line:
        """Return what the job in *row* asks for.

        Raises:
            RequestError: slurmctld does not answer.
        """
        if self._known is None:
            self._known = {
                seen["JobArrayID"]: _line(self._waiting[seen["JobArrayID"]], seen)
                for seen in _seen([*dict.fromkeys(map(base_id, self._waiting))])
                if seen["JobArrayID"] in self._waiting
            }
        return self._known.get(row["JobArrayID"], _UNKNOWN)


def _seen(job_ids: Sequence[str]) -> Iterable[Row]:
    form = "".join(f"%{width}{letter}" for (_, width), letter in zip(_COLUMNS, _LETTERS, strict=True))
    for which in scontrol.jobs_options(job_ids):
        text = scontrol.run_bytes("squeue", "--noheader", "--all", "--states=PENDING", which, f"--format={form}")
        yield from parse_rows(text, _COLUMNS)


def _line(row: Row, seen: Row) -> scontrol.Line:
    """Return what `scontrol show job` says of a job that `squeue` shows as *row* and as *seen*.

    Where a job says nothing of memory, ``tres-alloc`` has all of a node's. Nothing tells whether ``MinMemory`` is of a
    core or of a node; ``tres-alloc`` has the sum of either.
    """
    wants_memory = seen["MinMemory"].strip("0KMGTP") != ""
    return {
        "Partition": row["Partition"],
        "Features": row["Feature"] or NOTHING,
        "NumCPUs": seen["NumCPUs"],
        "MinMemoryNode": asked(row).get("mem", "0") if wants_memory else "0",
        "ReqNodeList": seen["ReqNodes"] or NOTHING,
        "ExcNodeList": seen["ExcNodes"] or NOTHING,
    }
