"""Keeping what jobs really did: two tell of one run, the sampler on its node and the manager that saw it starve.

Invariants:

1. Whoever is first, and however often each tells it, the store has one row of a run: its figures, and that it starved.
2. Plugins hear of a run as it was written.
3. A run that failed once its memory had filled its cap starved, whether or not it said so; one that was interrupted did
   not.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from gpusage.hindsight import filled_its_cap
from gpusage.plugins.hooks import Hooks
from gpusage.store.decisions import DecisionStore
from gpusage_hooks.types import Usage

CLOCK_S = 2.0
"""A manager counts whole seconds; a sampler is started a little earlier or later, by the clock of its own node."""
_one_at_a_time = threading.Lock()


def keep_usage(usages: Sequence[Usage], store: DecisionStore, hooks: Hooks) -> tuple[Usage, ...]:
    """Write *usages* into *store*, each joined with what it has of the same run, and let plugins hear of them.

    Returns:
        What was written.

    Raises:
        StoreError: None of them could be kept.
    """
    with _one_at_a_time:
        whole = tuple(_joined(_judged(usage), store) for usage in usages)
        store.record_usage(whole)
    for usage in whole:
        hooks.usage_observed(usage)
    return whole


def is_same_run(one: Usage, other: Usage) -> bool:
    """Tell whether both are of one run, where both are of one job: its next run starts after the last has ended."""
    return max(one.started_at_s, other.started_at_s) < min(one.ended_at_s, other.ended_at_s) + CLOCK_S


def _judged(usage: Usage) -> Usage:
    starved = usage.outcome == "failed" and filled_its_cap(usage)
    return replace(usage, outcome="out_of_memory") if starved else usage


def _joined(usage: Usage, store: DecisionStore) -> Usage:
    if not usage.number:
        return usage  # such a job had no share, so only its sampler tells of it
    seen = [observed.usage for observed in store.usage(job_id=usage.job_id, number=usage.number)]
    same = [known for known in seen if is_same_run(known, usage)]
    if not same:
        return _with_share(usage, store)
    known = min(same, key=lambda each: abs(each.started_at_s - usage.started_at_s))
    measured = usage if usage.gpu else known  # only the sampler sees the GPU
    outcome = known.outcome if known.outcome == "out_of_memory" else usage.outcome
    return replace(measured, started_at_s=known.started_at_s, outcome=outcome)


def _with_share(usage: Usage, store: DecisionStore) -> Usage:
    """Return *usage* of a run that starved and that no node looked at with the share that was decided for its job."""
    record = store.find(usage.number) if usage.outcome == "out_of_memory" and not usage.sampled_s else None
    percent = record.decision.request.mps_thread_percent if record and record.mode == "enforce" else None
    return replace(usage, granted=replace(usage.granted, share_percent=percent)) if percent else usage
