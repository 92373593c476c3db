"""A site's plugin that decides shares by another rule: jobs share a GPU where their known utilizations add up to 100 %.

Yeung et al. pack jobs by GPU utilization, three at most on a GPU, and limit nobody's threads. Only a utilization that
the user (`utilization=60`) or an earlier run knows counts: what a graph shows is too inexact. What a job costs beside
such partners is not predicted, so nothing is promised about its speed (docs/shares.md has how often it went wrong).

Copy it into a package with an entry point in the group `gpusage` (docs/plugins.md), and install it where gpusaged runs.
It answers at the stage ``sharing`` alone, so all other stages are decided as without it.

Source:
    Yeung et al., "Towards GPU Utilization Prediction for Cloud Deep Learning", HotCloud 2020.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gpusage.devices.shares import memory_cap_bytes
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Candidate, Decision, PolicyInput, Stage

MOST_JOBS = 3
"""On one GPU, as in Yeung et al."""
MOST_PERCENT = 80
"""A job that needs more of a GPU leaves too little for others."""
FILLED_MEMORY = 0.95
"""The part of a share's memory that its job may fill: each process on a GPU costs its driver some of it."""


@hookimpl
def decide(stage: Stage, policy_input: PolicyInput, draft: Decision) -> Decision | None:
    """Put a share as large as the known utilization in place of the whole GPU, with all of the threads."""
    if stage != "sharing" or draft.request.gpu_count != 1 or not policy_input.rules.sharing.enabled:
        return None

    # A preference confines no job, so the share must be large enough on each GPU type that it may land on.
    named = policy_input.request.gpu_type
    candidates = [each for each in policy_input.candidates if named in (None, each.name, each.gpu.name)]
    reason = _obstacle(policy_input, candidates)
    if reason:
        return replace(draft, reasons=(*draft.reasons, f"a whole GPU is kept: {reason}"), plugin=__name__)

    # One more than MOST_JOBS shares must not fit on a GPU.
    tightest = max(candidates, key=_needed_percent)
    percent = max(_needed_percent(tightest), 100 // (MOST_JOBS + 1) + 1)
    if percent > MOST_PERCENT:
        reason = f"a whole GPU is kept: it needs {percent} % of a {tightest.name}"
        return replace(draft, reasons=(*draft.reasons, reason), plugin=__name__)

    request = replace(
        draft.request,
        gpu_count=0,
        mps_thread_percent=percent,
        thread_cap_percent=100,
        memory_cap_bytes=min(memory_cap_bytes(each.gpu.memory_bytes, percent) for each in candidates),
    )
    reasons = (f"packed by its GPU utilization and memory, {percent} % of a GPU", "no slowdown is promised")
    return replace(draft, request=request, reasons=(*draft.reasons, *reasons), plugin=__name__, need=tightest.need)


def _obstacle(policy_input: PolicyInput, candidates: list[Candidate]) -> str:
    """Return why the job cannot be packed, whatever its utilization; empty where it can."""
    if policy_input.cluster.unshared:
        return "; ".join(policy_input.cluster.unshared.values())
    if policy_input.workload.slowdown == 1 or policy_input.request.deadline_s is not None:
        return "it must not become slower"
    whole = [each.name for each in candidates if not each.pool.mps_per_gpu or each.gpu.parent_gpu]
    whole += [pool.site_type for pool in policy_input.cluster.pools if pool.gpu is None]
    if whole or not candidates:
        return f"it could land on {', '.join(whole)}, which cannot be shared" if whole else "no GPU can be shared"
    strange = [each.name for each in candidates if not each.need.familiar]
    if strange:
        return "the workload is unlike those that the prediction was fitted on"
    unknown = [each.name for each in candidates if each.known.gpu_utilization is None]
    return f"its GPU utilization is not known on {', '.join(unknown)}; write utilization=60" if unknown else ""


def _needed_percent(candidate: Candidate) -> int:
    """Return the share that holds the job's utilization and its memory, each at its pessimistic end, in percent."""
    figure = candidate.known.gpu_utilization
    utilization = figure.interval.high if figure else 1.0
    memory = candidate.need.certain_memory_bytes / (FILLED_MEMORY * candidate.gpu.memory_bytes)

    # Rounded first: 0.28 is 28 %, and not a hair more.
    return math.ceil(round(100 * max(utilization, memory), 6))
