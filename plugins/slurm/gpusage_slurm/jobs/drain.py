"""`gpusage slurm drain`: the kill switch that stops new shares, and what happens to the jobs that hold or await one.

A job with a share needs cli_filter and the task prolog until it ends: an inner `srun` requests the share through them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from gpusage.service.client import find_status
from gpusage.store.annotation import parse_annotation
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import AnnotatedJob
from gpusage_slurm.jobs.restore import restore_whole_gpu
from gpusage_slurm.jobs.stuck import find_shared_jobs

REASON = "gpusage leaves this site"
DrainAction = Literal["turn back", "turned back", "let it end", "let it end, or cancel it and submit it again"]
_STAYS: Final = "let it end, or cancel it and submit it again"
_SEEN_WITHIN_S = 20.0
"""gpusaged looks for the kill switch twice a second; on a busy host later."""
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class KillSwitch:
    """The kill switch.

    Attributes:
        made: Whether its file was not there.
        trouble: Why new jobs may be rewritten all the same, ``None`` where gpusaged says that it leaves them alone.
    """

    path: str
    made: bool = False
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainedJob:
    """A job with a share, and what happens to it.

    Attributes:
        before: The request as its user made it.
        after: The share that it waits for or holds.
        what: What is to be done, or was.
        why: Where it could not be turned back.
    """

    job_id: str
    user: str
    state: str
    before: str
    after: str
    what: DrainAction
    why: str = ""


def drain_jobs(*, act: bool) -> tuple[DrainedJob, ...]:
    """Return each pending or running job with a share; with *act*, restore the requests of pending ones.

    Raises:
        RequestError: slurmctld does not answer.
    """
    return tuple(_drained_job(job, act=act) for job in find_shared_jobs(("waiting", "running")))


def enable_kill_switch(path: str, sockets: Sequence[str]) -> KillSwitch:
    """Make the kill switch's file, and wait until gpusaged, which may listen at *sockets*, says that it is on.

    Raises:
        RequestError: The configuration names none, or it cannot be made.
    """
    is_new = _create_file(path)
    return KillSwitch(path=path, made=is_new, trouble=_why_unseen(path, sockets))


def _create_file(path: str) -> bool:
    """Create the file at *path*; return whether it is new."""
    if not path:
        message = "Key 'kill_switch' of gpusage.toml must name a file; got ''. Give it one, '/etc/gpusage/off'."
        raise RequestError(message)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError as error:
        message = f"Kill switch {path!r} must be made; got: {error.strerror}. Do this as its folder's owner."
        raise RequestError(message) from error
    return True


def _why_unseen(path: str, sockets: Sequence[str]) -> str | None:
    """Return why no gpusaged says within a few seconds that the kill switch is on."""
    deadline_s = time.monotonic() + _SEEN_WITHIN_S
    while True:
        try:
            _, status = find_status(sockets)
        except RequestError:
            return f"no gpusaged answers on this host; if one runs on another, {path} must be there"
        switch = status["kill_switch"]
        if switch["on"]:
            return None
        if time.monotonic() > deadline_s:
            return f"gpusaged looks for {switch['path'] or 'none'} ('kill_switch' in its gpusage.toml)"
        time.sleep(_PAUSE_S)


def require_no_shares() -> None:
    """Refuse to uninstall while jobs with shares need gpusage.

    Raises:
        RequestError: There are such jobs, or slurmctld does not answer.
    """
    try:
        jobs = find_shared_jobs(("waiting", "running"))
    except RequestError as error:
        message = f"{error} Whether rewritten jobs still need gpusage cannot be seen; add --with-jobs to go on."
        raise RequestError(message) from error
    if jobs:
        names = ", ".join(job.job_id for job in jobs[:5]) + (" ..." if len(jobs) > 5 else "")  # a line
        message = (
            "No rewritten job may be pending or running when gpusage is removed: each needs cli_filter and the "
            f"task prolog until it ends; got {len(jobs)}: {names}. Run gpusage slurm drain --yes, or add --with-jobs."
        )
        raise RequestError(message)


def document(leaving: Iterable[DrainedJob], switch: KillSwitch, *, act: bool) -> Mapping[str, Any]:
    """Return what `gpusage slurm drain --json` prints."""
    jobs = [asdict(each) for each in leaving]
    return {
        "schema": "gpusage.slurm.drain/1",
        "applied": act,
        "kill_switch": asdict(switch),
        "jobs": jobs,
    }


def lines(leaving: Sequence[DrainedJob], switch: KillSwitch, *, act: bool) -> Iterator[str]:
    """Yield what `gpusage slurm drain` prints for people."""
    if switch.trouble:
        yield f"The kill switch {switch.path} is there, but new jobs may still be rewritten: {switch.trouble}."
    elif act:
        yield f"The kill switch {switch.path} is on: new jobs stay as they are. Remove that file to resume."
    if not leaving:
        yield "No rewritten job is pending or running: gpusage can be removed."
    for job in leaving:
        why = f" ({job.why})" if job.why else ""
        yield f"{job.job_id} of {job.user}, {job.state}, {job.before} -> {job.after}: {job.what}{why}"
    if any(job.what != "turned back" for job in leaving):
        yield "Until the jobs that stay have ended, leave gpusage installed: their srun lines need it."
    if not act:
        yield "Add --yes to switch gpusage off for new jobs, and to restore the requests of pending ones."


def _drained_job(job: AnnotatedJob, *, act: bool) -> DrainedJob:
    mark = parse_annotation(job.mark)
    what, why = _drain(job, act=act)
    return DrainedJob(
        job_id=job.job_id,
        user=job.user,
        state=job.state,
        before=mark.before if mark else "",
        after=mark.after if mark else "",
        what=what,
        why=why,
    )


def _drain(job: AnnotatedJob, *, act: bool) -> tuple[DrainAction, str]:
    if job.state != "waiting":
        return "let it end", ""
    if not act:
        return "turn back", ""
    try:
        done = restore_whole_gpu(job, REASON)
    except GpuUsageError as error:
        return _STAYS, str(error)
    if done:
        return "turned back", ""
    return _STAYS, "this version of Slurm changes no waiting share into a GPU"
