"""Collecting: from the letters that nodes show, and what masters tell of misses, to usage.

A letter tells what was measured of a container; whose application it was, how it ended and what was decided of it, the
ResourceManager tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from gpusage.plain_text import one_line
from gpusage.sampler.letter import letter_in
from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import GpuCatalogue, known_gpu
from gpusage_hooks.types import Outcome, Usage
from gpusage_yarn.documents import Document
from gpusage_yarn.following import ENDED, outcome_of
from gpusage_yarn.following import Outcome as Ended
from gpusage_yarn.pending import number_in
from gpusage_yarn.usage.misses import collect_misses

_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+)_(\d+)_\d+_\d+", re.ASCII)
OUTCOMES: Mapping[str, Outcome] = MappingProxyType(
    {"SUCCEEDED": "completed", "FAILED": "failed", "KILLED": "cancelled"}
)
"""By YARN's final states, which are the application's and not the container's."""


def collect_usage(
    get: Callable[[str], Document], letters: Iterable[str], catalogue: GpuCatalogue
) -> tuple[Usage, ...]:  # fmt: skip
    """Return what applications that ended lately really did, and which of them had too little GPU memory.

    Args:
        get: Asks for a path below ``/ws/v1/cluster``.
        letters: What nodes show.
        catalogue: Knows GPUs by the device's own words.

    Raises:
        GpuUsageError: The ResourceManager does not answer, or refuses.
    """
    seen = [usage for text in letters for usage in letter_in(text)]
    reports = _reports(get, {application_of(usage.job_id) for usage in seen})
    sampled = [
        _joined(usage, report, catalogue)
        for usage in seen
        if (report := reports.get(application_of(usage.job_id))) and report.get("state") in ENDED
    ]
    known = {usage.job_id for usage in sampled if usage.outcome == "out_of_memory"}
    return (*sampled, *(miss for miss in collect_misses(get) if miss.job_id not in known))


def application_of(container: str) -> str:
    """Return the application of a container, ``container_e17_1700000000000_0001_01_000002``; empty where it is none."""
    match = _CONTAINER.fullmatch(container)
    return f"application_{match[1]}_{match[2]}" if match else ""


def _joined(usage: Usage, report: Document, catalogue: GpuCatalogue) -> Usage:
    outcome = outcome_of(report)
    starved = any(sentence.startswith(f"{usage.job_id} ") for sentence in outcome.starved())
    return replace(
        usage,
        number=number_in(str(report.get("applicationTags") or "")),
        job_id=outcome.identity,
        user=str(report.get("user") or ""),
        job_name=one_line(str(report.get("name") or "")),
        gpu=known_gpu(catalogue, usage.gpu) or usage.gpu,
        outcome="out_of_memory" if starved else _ending(outcome),
    )


def _ending(outcome: Ended) -> Outcome:
    return "interrupted" if outcome.is_interrupted() else OUTCOMES.get(outcome.state, "unknown")


def _reports(get: Callable[[str], Document], identities: Iterable[str]) -> dict[str, Document]:
    """Return what is known of applications; one that is forgotten, or never was, is left out."""
    reports = {}
    for identity in filter(None, identities):
        with suppress(RequestError):
            reports[identity] = get(f"apps/{identity}")["app"]
    return reports
