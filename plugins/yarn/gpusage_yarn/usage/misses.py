"""Applications that ran out of their share's GPU memory, as their masters tell in their diagnostics.

Invariants:

1. Of an application of another kind nothing is believed, and of ours nothing but that it had too little memory: its
   user could have written it.
2. Whose application it was, and when it ran, the ResourceManager tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from gpusage.plain_text import one_line
from gpusage_hooks.types import Usage
from gpusage_yarn.application import TYPE
from gpusage_yarn.documents import Document, as_list
from gpusage_yarn.following import outcome_of
from gpusage_yarn.pending import number_in
from gpusage_yarn.request import MANAGER

RECENT_S = 3600.0
"""gpusaged asks every minute or so; one that was away for so long still hears of them."""


def collect_misses(get: Callable[[str], Document]) -> tuple[Usage, ...]:
    """Return the runs that had too little GPU memory, of applications that ended lately.

    Args:
        get: Asks for a path below ``/ws/v1/cluster``.

    Raises:
        GpuUsageError: The ResourceManager does not answer, or refuses.
    """
    since_ms = int(1000 * (time.time() - RECENT_S))
    asked = f"applicationTypes={TYPE}&states=FINISHED&finishedTimeBegin={since_ms}&deSelects=resourceRequests"
    return tuple(misses(get(f"apps?{asked}")))


def misses(document: Document) -> Iterator[Usage]:
    """Yield the runs in *document*, as ``apps`` answers, that had too little GPU memory."""
    for application in as_list(document, "apps", "app"):
        if outcome_of(application).starved():
            yield Usage(
                number=number_in(str(application.get("applicationTags") or "")),
                manager=MANAGER,
                job_id=str(application["id"]),
                user=str(application.get("user") or ""),
                job_name=one_line(str(application.get("name") or "")),
                outcome="out_of_memory",
                started_at_s=float(application.get("startedTime") or 0) / 1000,
                ended_at_s=float(application.get("finishedTime") or 0) / 1000,
            )
