"""A waiting job that gets its user's request again, by `scontrol update`.

Slurm 24.11 and 26.05 change a waiting job's shares into GPUs; 22.05 refuses ("Invalid generic resource"; emptied first,
the job would run without any). There a job that is bound to GPU types gets all shares of one GPU, wherever that is, and
any other stays as it is. What stood beside the share stays. A job that was turned back carries the mark BACK, and is
left alone from then on; one that could not be carries STUCK.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gpusage.mark import Mark, parse_mark, with_mark
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import MarkedJob
from gpusage_slurm import scontrol
from gpusage_slurm.cluster.free import counts, of_type
from gpusage_slurm.cluster.pools import parse_node
from gpusage_slurm.jobs.bound import own_constraint, slice_of
from gpusage_slurm.jobs.kept_off import freed_nodes, let_in
from gpusage_slurm.jobs.rows import Row, base_id, rows, update_job
from gpusage_slurm.submission.avoided import avoided_by, place_of
from gpusage_slurm.tres import Tres, is_gpu, is_share, parse_list

_GPU = re.compile(r"gres/(gpu(?::[A-Za-z0-9_.-]+)?:1)")
_COLUMNS = (("JobArrayID", 64), ("tres-per-node", 512), ("Feature", 1100))
MAXIMUM_BYTES = 1024
"""Of an admin comment."""
_REFUSED = ("generic resource", "GRES specification")
"""How 22.05 says that it changes no share, and no slice, into a GPU."""
_CURE = "Slurm of this version cannot do it: cancel the job, and submit it with gpusage=off in its comment"


def turn_back(job: MarkedJob, reason: str) -> bool:
    """Let *job* run on the nodes that it avoids; if it avoids none, give it one whole GPU again; see the hook.

    Raises:
        RequestError: As `give_back`.
    """
    mark = parse_mark(job.mark)
    if mark is not None and avoided_by(mark):
        update_job(job.job_id, *freed_nodes(job, mark), _comment(job, let_in(mark, reason)))
        return True
    return turn_back_whole(job, reason)


def turn_back_whole(job: MarkedJob, reason: str) -> bool:
    """Give *job* one whole GPU again, or write into its mark what its user can do.

    Raises:
        RequestError: As `give_back`.
    """
    if give_back(job, reason):
        return True
    mark = parse_mark(job.mark)
    if mark is not None and mark.code != "STUCK":
        advice = f"should have its GPU back: {reason}. {_CURE} | {mark.reasons}"
        update_job(job.job_id, _comment(job, replace(mark, code="STUCK", reasons=advice)))
    return False


def give_back(job: MarkedJob, reason: str, *more: str, as_share: bool = False) -> bool:
    """Tell whether *job*, which waits, has one whole GPU again.

    Args:
        job: With its mark.
        reason: For the mark.
        more: Settings that are changed at the same time.
        as_share: Whether all shares of a GPU will do even for a job that is not bound to GPU types.

    Raises:
        RequestError: The job waits no more, carries no mark of a share, or slurmctld refuses.
    """
    mark = parse_mark(job.mark)
    asked = _GPU.fullmatch(mark.before) if mark else None
    if mark is None or asked is None or not mark.of_share:
        message = f"Job {job.job_id} must carry the mark of a share; got {job.mark[:80]!r}. It is left as it is."
        raise RequestError(message)
    row = _waiting(job, mark)
    freed = (*_freed(mark, row["Feature"]), *freed_nodes(job, mark), *more)
    if _changed(job, mark, row, asked[1], freed, reason):
        return True
    units = whole_units() if as_share or any(setting.startswith("Features=") for setting in freed) else None
    return units is not None and _changed(job, mark, row, f"mps:{units}", freed, reason)


def _changed(job: MarkedJob, mark: Mark, row: Row, gpu: str, freed: tuple[str, ...], reason: str) -> bool:
    """Tell whether slurmctld lets the job have *gpu* in the place of its share."""
    back = replace(mark, code="BACK", before=mark.after, after=f"gres/{gpu}", reasons=reason)
    try:
        update_job(job.job_id, f"Gres={_restored(row, mark, gpu)}", *freed, _comment(job, back))
    except RequestError as error:
        if not any(words in str(error) for words in _REFUSED):
            raise
        return False
    return True


def whole_units() -> int | None:
    """Return how many shares every GPU that can be shared counts, ``None`` where they differ."""
    units = {
        of_type(counts(node.gres, "mps"), kind) // count
        for node in map(parse_node, scontrol.nodes())
        for kind, count in counts(node.gres, "gpu").items()
        if count
    }
    units.discard(0)  # of slices, and other GPUs that are not shared
    return units.pop() if len(units) == 1 else None


def _freed(mark: Mark, features: str) -> Iterator[str]:
    """Yield the settings that take back where the share was to run; a GPU type that the user named stays held."""
    if place_of(mark).startswith("prefer "):
        yield "Prefer="
    own = own_constraint(mark, features)
    if own is not None:
        yield f"Features={own}"


def _waiting(job: MarkedJob, mark: Mark) -> Row:
    """Return what the job asks for now; it waits for a share, or a slice."""
    which = ("--states=PENDING", f"--jobs={base_id(job.job_id)}")
    waiting = {row["JobArrayID"]: row for row in rows(*which, columns=_COLUMNS)}.get(job.job_id)
    if waiting is None or not any(_is_part(each, mark) for each in parse_list(waiting["tres-per-node"])):
        message = f"Job {job.job_id} must wait for a share; it waits no more, or was changed. It is left as it is."
        raise RequestError(message)
    return waiting


def _is_part(resource: Tres, mark: Mark) -> bool:
    """Tell whether *resource* is the share or slice that a job with *mark* has in place of its GPU."""
    return is_share(resource) or (is_gpu(resource) and resource.kind is not None and resource.kind == slice_of(mark))


def _restored(row: Row, mark: Mark, gpu: str) -> str:
    """Return what the job in *row* asks for, *gpu* in the place of its share or slice."""
    resources = parse_list(row["tres-per-node"])
    others = [re.sub(r"^gres[:/]", "", resource.text) for resource in resources if not _is_part(resource, mark)]
    return ",".join((gpu, *others))


def _comment(job: MarkedJob, new: Mark) -> str:
    """Return the setting that puts *new* in the place of the job's mark, within Slurm's limit."""
    return f"AdminComment={with_mark(job.mark, new, MAXIMUM_BYTES)}"
