"""The nodes that a job excludes: its user's own, and those that its share is kept off for its neighbours' sake."""

from __future__ import annotations

from gpusage.mark import Mark
from gpusage_hooks.errors import RequestError
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.hostlist import expand
from gpusage_slurm.submission.avoided import avoided_by

NOTHING = "(null)"


def excluded(job: scontrol.Line) -> tuple[str, ...]:
    """Return the names of the nodes that *job* excludes, as `scontrol show job` has it: slurmctld writes ``n[1,3]``.

    What cannot be taken apart is one name.
    """
    listed = job.get("ExcNodeList", NOTHING)
    try:
        return () if listed == NOTHING else expand(listed)
    except RequestError:
        return (listed,)


def own_exclusion(mark: Mark | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return which of the nodes *names*, that a job with *mark* excludes, its user does.

    A list without some that the mark says was changed since: it is its user's.
    """
    ours = {*avoided_by(mark)}
    return tuple(name for name in names if name not in ours) if ours <= {*names} else names


def may_run_on(job: scontrol.Line, mark: Mark | None, node: str) -> bool:
    """Tell whether neither the user of *job* names or excludes nodes, nor its share is kept off *node*.

    Args:
        job: What `scontrol show job` says of it.
        mark: Its own.
        node: Any.
    """
    if job.get("ReqNodeList", NOTHING) != NOTHING or node in avoided_by(mark):
        return False
    return job.get("ExcNodeList", NOTHING) == NOTHING or not own_exclusion(mark, excluded(job))
