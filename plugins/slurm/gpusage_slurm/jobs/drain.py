"""`gpusage slurm drain`: the kill switch that stops new shares, and the jobs that hold or await a share.

A job with a share needs cli_filter and the task prolog until it ends: an inner `srun` requests the share through them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from gpusage.cli import tables
from gpusage.service.client import find_status
from gpusage.settings.configuration_file import load_configuration
from gpusage.store.annotation import parse_annotation
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import AnnotatedJob
from gpusage_slurm.install.site import local_socket_candidates
from gpusage_slurm.jobs.restore import restore_whole_gpu
from gpusage_slurm.jobs.stuck import find_shared_jobs

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


def drain(*, yes: bool, as_json: bool) -> None:
    """Show which rewritten jobs wait or run; with --yes, rewrite no more and turn those back that wait."""
    # The switch comes first: a job that is rewritten between the two would be missed.
    path = load_configuration().kill_switch
    switch = enable_kill_switch(path, local_socket_candidates()) if yes else KillSwitch(path=path)
    jobs = tuple(_drain_job(job, act=yes) for job in find_shared_jobs(("waiting", "running")) if not job.other_types)

    if as_json:
        tables.print_json(
            {
                "schema": "gpusage.slurm.drain/1",
                "applied": yes,
                "kill_switch": asdict(switch),
                "jobs": [asdict(each) for each in jobs],
            }
        )
        return
    tables.show(*lines(jobs, switch, act=yes))


def enable_kill_switch(path: str, sockets: Sequence[str]) -> KillSwitch:
    """Make the kill switch's file, and wait until gpusaged, which may listen at *sockets*, says that it is on.

    Raises:
        RequestError: The configuration names none, or it cannot be made.
    """
    if not path:
        message = "Key 'kill_switch' of gpusage.toml must name a file; got ''. Give it one, '/etc/gpusage/off'."
        raise RequestError(message)

    is_new = True
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        is_new = False
    except OSError as error:
        message = f"Kill switch {path!r} must be made; got: {error.strerror}. Do this as its folder's owner."
        raise RequestError(message) from error
    return KillSwitch(path=path, made=is_new, trouble=_why_unseen(path, sockets))


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

        # Its gpusage.toml may name another file than ours.
        if time.monotonic() > deadline_s:
            return f"gpusaged looks for {switch['path'] or 'none'} ('kill_switch' in its gpusage.toml)"
        time.sleep(_PAUSE_S)


def _drain_job(job: AnnotatedJob, *, act: bool) -> DrainedJob:
    """Return the fate of *job*; with *act*, restore its request if it waits."""
    what: DrainAction = "let it end"
    why = ""
    if job.state == "waiting" and not act:
        what = "turn back"
    elif job.state == "waiting":
        try:
            is_restored = restore_whole_gpu(job, "gpusage leaves this site")
        except GpuUsageError as error:
            what, why = _STAYS, str(error)
        else:
            what = "turned back" if is_restored else _STAYS
            why = "" if is_restored else "this version of Slurm changes no waiting share into a GPU"

    mark = parse_annotation(job.mark)
    return DrainedJob(
        job_id=job.job_id,
        user=job.user,
        state=job.state,
        before=mark.before if mark else "",
        after=mark.after if mark else "",
        what=what,
        why=why,
    )


def lines(jobs: Sequence[DrainedJob], switch: KillSwitch, *, act: bool) -> Iterator[str]:
    """Yield the lines that `gpusage slurm drain` prints for people."""
    if switch.trouble:
        yield f"The kill switch {switch.path} is there, but new jobs may still be rewritten: {switch.trouble}."
    elif act:
        yield f"The kill switch {switch.path} is on: new jobs stay as they are. Remove that file to resume."

    if not jobs:
        yield "No rewritten job is pending or running: gpusage can be removed."
    for job in jobs:
        why = f" ({job.why})" if job.why else ""
        yield f"{job.job_id} of {job.user}, {job.state}, {job.before} -> {job.after}: {job.what}{why}"

    if any(job.what != "turned back" for job in jobs):
        yield "Until the jobs that stay have ended, leave gpusage installed: their srun lines need it."
    if not act:
        yield "Add --yes to switch gpusage off for new jobs, and to restore the requests of pending ones."
