"""Writes the usage of runs: two sources report one run, the sampler on its node and the manager that saw it fail.

Invariants:

1. Whichever comes first, and however often each comes, the store has one row of a run: its figures, and that it ran out
   of memory. Of a run on whole GPUs of several nodes it has one of each node, which counts that node's GPUs.
2. Plugins receive a run as it was written.
3. A run that failed once its memory had filled its cap ran out of memory, whether or not its manager noticed; one that
   was interrupted did not.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from gpusage.experience.finished_jobs import filled_memory_cap, is_of_another_node, is_same_run
from gpusage.plugins.hooks import Hooks
from gpusage.store.decisions import DecisionStore
from gpusage_hooks.types import Usage

# Reading a run's row and writing it merged are one step: the monitor's thread and the collector's both report runs.
_merge_lock = threading.Lock()


def record_usage(usages: Sequence[Usage], store: DecisionStore, hooks: Hooks) -> tuple[Usage, ...]:
    """Write *usages* into *store*, each merged with its row of the same run, and pass them to plugins.

    Returns:
        What was written.

    Raises:
        StoreError: None of them could be written.
    """
    with _merge_lock:
        merged = tuple(_merge_with_row(_with_inferred_outcome(usage), store) for usage in usages)
        store.record_usage(merged)
    for usage in merged:
        hooks.usage_observed(usage)
    return merged


def _with_inferred_outcome(usage: Usage) -> Usage:
    ran_out_of_memory = usage.outcome == "failed" and filled_memory_cap(usage)
    return replace(usage, outcome="out_of_memory") if ran_out_of_memory else usage


def _merge_with_row(usage: Usage, store: DecisionStore) -> Usage:
    if not usage.number:
        return usage  # such a job had no share, so only its sampler reports it
    rows = [observation.usage for observation in store.usage(job_id=usage.job_id, number=usage.number)]
    same_run = [row for row in rows if is_same_run(row, usage) and not is_of_another_node(row, usage)]
    if not same_run:
        return _with_share(usage, store)
    row = min(same_run, key=lambda each: abs(each.started_at_s - usage.started_at_s))
    measured = usage if usage.gpu else row  # only the sampler sees the GPU
    outcome = row.outcome if row.outcome == "out_of_memory" else usage.outcome
    return replace(measured, started_at_s=row.started_at_s, outcome=outcome)


def _with_share(usage: Usage, store: DecisionStore) -> Usage:
    """Return *usage*, of a failed run that no node sampled, with the share that was decided for its job."""
    record = store.find(usage.number) if usage.outcome in ("out_of_memory", "failed") and not usage.gpu else None
    percent = record.decision.request.mps_thread_percent if record and record.mode == "enforce" else None
    return replace(usage, granted=replace(usage.granted, share_percent=percent)) if percent else usage
