"""Every application with a GPU that ended in a time, as the ResourceManager counted its resources.

The ResourceManager adds up how long each resource was held by all containers of an application, so the number of GPUs
is the mean over the application's time. It forgets applications, the oldest first
(``yarn.resourcemanager.max-completed-applications``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpusage.boundary.printable_text import one_line
from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Allocation, Usage
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_yarn.cluster.documents import Document, as_list, resource_seconds
from gpusage_yarn.cluster.queues import GPUS
from gpusage_yarn.cluster.tags import find_decision_number, parse_plan_tags
from gpusage_yarn.settings import MANAGER
from gpusage_yarn.submission.monitoring import ENDED, parse_outcome
from gpusage_yarn.usage.collection import ending


def accounting_path(since_s: float, until_s: float) -> str:
    """Return what to ask for, below ``/ws/v1/cluster``, of applications that ended in that time."""
    times = f"finishedTimeBegin={int(1000 * since_s)}&finishedTimeEnd={int(1000 * until_s)}"
    return f"apps?states={','.join(ENDED)}&{times}&deSelects=resourceRequests"


def parse_accounting(document: Document, share: str, catalogue: GpuCatalogue) -> Iterator[Usage]:
    """Yield the runs in *document*, as ``apps`` answers, that held GPUs or shares.

    Args:
        document: As ``apps`` answers.
        share: The resource type of which one shared GPU has 100.
        catalogue: By whose names GPUs are known.
    """
    for application in as_list(document, "apps", "app"):
        seconds = resource_seconds(application)
        begin_ms = int(application.get("launchTime") or application.get("startedTime") or 0)
        duration_s = (int(application.get("finishedTime") or 0) - begin_ms) / 1000
        if duration_s <= 0:
            continue
        if seconds.get(GPUS):
            yield _usage(application, begin_ms, seconds[GPUS] / duration_s, Allocation(), catalogue)
        if seconds.get(share):
            held = seconds[share] / duration_s  # hundredths of GPUs
            percent, _ = parse_plan_tags(str(application.get("applicationTags") or ""))
            percent = percent or min(max(round(held), 1), WHOLE_PERCENT)
            granted = Allocation(division="percentage", share_percent=percent)
            yield _usage(application, begin_ms, held / percent, granted, catalogue)


def _usage(
    application: Mapping[str, Any], begin_ms: int, gpu_count: float, granted: Allocation, catalogue: GpuCatalogue
) -> Usage:
    tags, label = str(application.get("applicationTags") or ""), str(application.get("appNodeLabelExpression") or "")
    _, labels = parse_plan_tags(tags)
    types = [label] if label else [*labels]
    return Usage(
        number=find_decision_number(tags),
        manager=MANAGER,
        job_id=str(application["id"]),
        user=str(application.get("user") or ""),
        user_id=str(application.get("user") or ""),
        account=str(application.get("queue") or ""),
        partition=label,
        job_name=one_line(str(application.get("name") or "")),
        gpu=(known_gpu(catalogue, types[0]) or types[0]) if len(types) == 1 else "",
        gpu_count=gpu_count,
        granted=granted,
        outcome=ending(parse_outcome(application)),
        started_at_s=begin_ms / 1000,
        ended_at_s=int(application["finishedTime"]) / 1000,
    )
