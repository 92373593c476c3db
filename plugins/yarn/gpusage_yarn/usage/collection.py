"""Usage of applications that ended: the reports of their nodes, the diagnostics of their masters, and YARN's own sums.

A node reports what was measured of a container; the ResourceManager knows whose application it was, how it ended and
what was decided. Of a master's diagnostics, which its user could have written, only one thing is believed: that a share
had too little GPU memory.

The ResourceManager adds up how long each resource was held by all containers of an application, so the number of GPUs
is the mean over the application's time. It forgets applications, the oldest first
(``yarn.resourcemanager.max-completed-applications``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from gpusage.boundary.printable_text import one_line
from gpusage.node.sampler.usage_reports import parse_usage_reports
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Allocation, Outcome, Usage
from gpusage_hooks.units import WHOLE_PERCENT
from gpusage_yarn.cluster.documents import Document, as_list, resource_seconds
from gpusage_yarn.cluster.queues import GPUS
from gpusage_yarn.cluster.tags import find_decision_number, parse_plan_tags
from gpusage_yarn.settings import MANAGER
from gpusage_yarn.share_plan import TYPE
from gpusage_yarn.submission.monitoring import ENDED, ApplicationOutcome, parse_outcome

_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+)_(\d+)_\d+_\d+", re.ASCII)
OUTCOMES: Mapping[str, Outcome] = MappingProxyType(
    {"SUCCEEDED": "completed", "FAILED": "failed", "KILLED": "cancelled"}
)
"""By YARN's final states, which are the application's and not the container's."""
LYING_TYPE = "SPARK"
"""Of the only master known to end as ``SUCCEEDED`` after its job has failed; its executors' words count for more."""
RECENT_S = 3600.0
"""gpusaged asks every minute or so; one that was away for so long still hears of them."""


def collect_usage(
    get: Callable[[str], Document], usage_reports: Iterable[str], catalogue: GpuCatalogue
) -> tuple[Usage, ...]:  # fmt: skip
    """Return the usage of applications that ended lately, and which of them had too little GPU memory.

    Args:
        get: Asks for a path below ``/ws/v1/cluster``.
        usage_reports: What nodes show.
        catalogue: Knows GPUs by the device's own words.

    Raises:
        GpuUsageError: The ResourceManager does not answer, or refuses.
    """
    seen = [usage for text in usage_reports for usage in parse_usage_reports(text)]
    reports: dict[str, Document] = {}
    for identity in filter(None, {application_of(usage.job_id) for usage in seen}):
        with suppress(RequestError):  # it is forgotten, or never was
            reports[identity] = get(f"apps/{identity}")["app"]

    ends = ((application_of(usage.job_id), usage.granted.share_percent, usage.outcome) for usage in seen)
    starved = {(identity, percent) for identity, percent, outcome in ends if outcome == "out_of_memory"}
    sampled = [
        _complete_usage(usage, report, catalogue, starved)
        for usage in seen
        if (report := reports.get(application_of(usage.job_id))) and report.get("state") in ENDED
    ]

    # A miss of a container that no node has sampled is known from its master alone.
    known = {usage.job_id for usage in sampled if usage.outcome != "completed"}
    return (*sampled, *(miss for miss in collect_misses(get) if miss.job_id not in known))


def application_of(container: str) -> str:
    """Return the application of a container, ``container_e17_1700000000000_0001_01_000002``; empty where it is none."""
    match = _CONTAINER.fullmatch(container)
    return f"application_{match[1]}_{match[2]}" if match else ""


def _complete_usage(usage: Usage, report: Document, catalogue: GpuCatalogue, starved: Container[object]) -> Usage:
    """Return *usage*, which a node measured, completed from the ResourceManager's *report*.

    *starved* has the applications, each with its share, of which a container ran out of memory by its own words.
    """
    outcome = parse_outcome(report)
    ran_out = any(sentence.startswith(f"{usage.job_id} ") for sentence in outcome.out_of_memory_messages())

    # Spark in client mode ends as SUCCEEDED whatever happened; a task that failed in one container ended all of them.
    ran_out |= report.get("applicationType") == LYING_TYPE and (report["id"], usage.granted.share_percent) in starved
    return replace(
        usage,
        **_identity_of(report),
        sampled_on=usage.job_id,
        account=str(report.get("queue") or ""),
        partition=str(report.get("appNodeLabelExpression") or ""),
        gpu=known_gpu(catalogue, usage.gpu) or usage.gpu,
        outcome="out_of_memory" if ran_out else ending(outcome),
    )


def _identity_of(application: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a usage that say whose *application* it is, and which decision was for it."""
    user = str(application.get("user") or "")
    return {
        "number": find_decision_number(str(application.get("applicationTags") or "")),
        "job_id": str(application["id"]),
        "user": user,
        "user_id": user,
        "job_name": one_line(str(application.get("name") or "")),
    }


def ending(outcome: ApplicationOutcome) -> Outcome:
    """Return how an application ended, by YARN's final state and its command's exit status."""
    return "interrupted" if outcome.is_interrupted() else OUTCOMES.get(outcome.state, "unknown")


def collect_misses(get: Callable[[str], Document]) -> tuple[Usage, ...]:
    """Return the runs that had too little GPU memory, or may have, of applications that ended lately.

    Args:
        get: Asks for a path below ``/ws/v1/cluster``.

    Raises:
        GpuUsageError: The ResourceManager does not answer, or refuses.
    """
    # An application whose share was too small ends well after all: its command ran again with a whole GPU.
    recent = f"finishedTimeBegin={int(1000 * (time.time() - RECENT_S))}&deSelects=resourceRequests"
    queries = (f"applicationTypes={TYPE}&states=FINISHED", "states=FINISHED,FAILED&finalStatus=FAILED")
    recent_misses = [miss for query in queries for miss in parse_misses(get(f"apps?{query}&{recent}"))]
    return tuple({miss.job_id: miss for miss in recent_misses}.values())


def parse_misses(document: Document) -> Iterator[Usage]:
    """Yield the runs in *document*, as ``apps`` answers, that had too little GPU memory.

    Runs that failed under others' masters are among them, as these do not tell why.
    """
    for application in as_list(document, "apps", "app"):
        identity, outcome = _identity_of(application), parse_outcome(application)
        ran_out = bool(outcome.out_of_memory_messages())
        is_others = application.get("applicationType") != TYPE and bool(identity["number"])
        if ran_out or (is_others and outcome.state == "FAILED"):
            yield Usage(
                **identity,
                manager=MANAGER,
                outcome="out_of_memory" if ran_out else ending(outcome),
                started_at_s=float(application.get("startedTime") or 0) / 1000,
                ended_at_s=float(application.get("finishedTime") or 0) / 1000,
            )


def accounting_path(since_s: float, until_s: float) -> str:
    """Return the path, below ``/ws/v1/cluster``, of applications that ended in that time."""
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

        # One application may hold whole GPUs and shares.
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
    label = str(application.get("appNodeLabelExpression") or "")
    _, labels = parse_plan_tags(str(application.get("applicationTags") or ""))
    types = [label] if label else [*labels]

    return Usage(
        **_identity_of(application),
        manager=MANAGER,
        account=str(application.get("queue") or ""),
        partition=label,
        gpu=(known_gpu(catalogue, types[0]) or types[0]) if len(types) == 1 else "",
        gpu_count=gpu_count,
        granted=granted,
        outcome=ending(parse_outcome(application)),
        started_at_s=begin_ms / 1000,
        ended_at_s=int(application["finishedTime"]) / 1000,
    )
