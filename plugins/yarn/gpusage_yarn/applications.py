"""Applications as `gpusage decisions` and `gpusage colocate` ask for them, each with the mark that its tags make.

YARN keeps no text for us, but ten tags: of `gpusage yarn submit` the number of the decision's record, the share and the
GPU types; of other clients' applications for which gpusaged was asked, the number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import quote

from gpusage.mark import Mark, MarkCode
from gpusage_hooks.types import JobState, MarkedJob
from gpusage_yarn.application import TYPE
from gpusage_yarn.documents import Document, as_list
from gpusage_yarn.following import ENDED
from gpusage_yarn.pending import number_in, plan_in
from gpusage_yarn.plan import WHOLE_GPU
from gpusage_yarn.render import describe_plan
from gpusage_yarn.request import MANAGER, WHOLE
from gpusage_yarn.rest import RefusedError

APPLICATION = re.compile(r"application_[0-9]{1,20}_[0-9]{4,10}")
_NOT_KNOWN = 404


def find_jobs(get: Callable[[str], Document], job_id: str, user: str) -> tuple[MarkedJob, ...]:
    """Return the applications with this id, or of this user, else all that the ResourceManager remembers.

    Args:
        get: Asks for a path below ``/ws/v1/cluster``.
        job_id: An application's id, or empty.
        user: A login name, or empty.

    Raises:
        GpuUsageError: The ResourceManager does not answer, or refuses.
    """
    if not job_id:
        whose = f"user={quote(user)}&" if user else ""
        return tuple(_marked(get(f"apps?{whose}deSelects=resourceRequests")))
    try:
        return tuple(_marked({"apps": {"app": [get(f"apps/{job_id}")["app"]]}}))
    except RefusedError as error:
        if error.status != _NOT_KNOWN:
            raise
        return ()


def _marked(document: Document) -> Iterator[MarkedJob]:
    for application in as_list(document, "apps", "app"):
        yield MarkedJob(
            job_id=str(application["id"]),
            manager=MANAGER,
            user=str(application.get("user") or ""),
            state=_state(application),
            mark=_mark(str(application.get("applicationTags") or "")),
        )


def _state(application: Document) -> JobState:
    """Return the state; of ours the master alone is none that runs."""
    if application.get("state") in ENDED:
        return "ended"
    masters = 1 if application.get("applicationType") == TYPE else 0
    return "running" if int(application.get("runningContainers") or 0) > masters else "waiting"


def _mark(tags: str) -> str:
    """Return the mark that *tags* make; empty where they name no decision."""
    number = number_in(tags)
    if not number:
        return ""
    share, labels = plan_in(tags)
    after = describe_plan(share, labels) if share and labels else WHOLE
    code: MarkCode = "KEEP" if share == WHOLE_GPU else "REWRITE"
    return str(Mark(number=number, code=code, mode="enforce", before=WHOLE, after=after, reasons=""))
