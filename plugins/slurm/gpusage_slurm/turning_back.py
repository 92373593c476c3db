"""A waiting job that gets its user's request again, by `scontrol update`.

Slurm 24.11 and 26.05 change a waiting job's shares into GPUs; 22.05 refuses ("Invalid generic resource"). What stood
beside the share stays. A job that was turned back carries the mark BACK, and is left alone from then on; one that
could not be carries STUCK.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gpusage.mark import Mark, parse_mark
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import MarkedJob
from gpusage_slurm import scontrol
from gpusage_slurm.constraint import unbound_constraint
from gpusage_slurm.jobs import base_id, rows
from gpusage_slurm.tres import is_share, parse_list

_GPU = re.compile(r"gres/(gpu(?::[A-Za-z0-9_.-]+)?:1)")
_UNTYPED = re.compile(r"gres/gpu(?::1)?")
_COLUMNS = (("JobArrayID", 64), ("tres-per-node", 512))
_MAXIMUM_BYTES = 1024
_REFUSED = "generic resource"
_CURE = "Slurm of this version cannot do it: cancel the job, and submit it with gpusage=off in its comment"


def turn_back(job: MarkedJob, reason: str) -> bool:
    """Give *job* one whole GPU again; see the hook.

    Raises:
        RequestError: The job waits no more, carries no mark of a share, or slurmctld refuses.
    """
    mark = parse_mark(job.mark)
    asked = _GPU.fullmatch(mark.before) if mark else None
    if mark is None or asked is None or not mark.of_share:
        message = f"Job {job.job_id} must carry the mark of a share; got {job.mark[:80]!r}. It is left as it is."
        raise RequestError(message)
    gres = _restored(job, asked[1])
    back = replace(mark, code="BACK", before=mark.after, after=mark.before, reasons=reason)
    try:
        _update(job, f"Gres={gres}", *_freed(mark), _comment(job, mark, back))
    except RequestError as error:
        if _REFUSED not in str(error):
            raise
    else:
        return True
    if mark.code != "STUCK":
        advice = f"should have its GPU back: {reason}. {_CURE} | {mark.reasons}"
        _update(job, _comment(job, mark, replace(mark, code="STUCK", reasons=advice)))
    return False


def _freed(mark: Mark) -> Iterator[str]:
    """Yield the settings that take back where the share was to run; a GPU type that the user named stays held."""
    place = mark.after.partition(", ")[2]
    if place.startswith("prefer "):
        yield "Prefer="
    if place.startswith("constraint ") and _UNTYPED.fullmatch(mark.before):
        yield f"Features={unbound_constraint(place.removeprefix('constraint '))}"


def _restored(job: MarkedJob, gpu: str) -> str:
    """Return what the waiting job asks for now, *gpu* in the place of its share."""
    which = ("--states=PENDING", f"--jobs={base_id(job.job_id)}")
    resources_by_job = {row["JobArrayID"]: row["tres-per-node"] for row in rows(*which, columns=_COLUMNS)}
    resources = parse_list(resources_by_job.get(job.job_id, ""))
    if not any(is_share(resource) for resource in resources):
        message = f"Job {job.job_id} must wait for a share; it waits no more, or was changed. It is left as it is."
        raise RequestError(message)
    others = [re.sub(r"^gres[:/]", "", resource.text) for resource in resources if not is_share(resource)]
    return ",".join((gpu, *others))


def _comment(job: MarkedJob, old: Mark, new: Mark) -> str:
    """Return the setting that puts *new* in the place of the mark *old*, within Slurm's limit; the site's stays."""
    site = job.mark.partition(f"gpusage {old.number}")[0]
    room = _MAXIMUM_BYTES - len(site.encode())
    text = str(new)
    return f"AdminComment={site}{text if len(text) <= room else text[: room - 3] + '...'}"


def _update(job: MarkedJob, *settings: str) -> None:
    # Of an array's limit on tasks at once, 12_[1-9%2], scontrol wants to hear nothing.
    scontrol.run("scontrol", "update", f"JobId={re.sub(r'%[0-9]+', '', job.job_id)}", *settings)
