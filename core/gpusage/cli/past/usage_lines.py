"""What a job really did, as JSON and on one line for people: requested, granted, used, and the next request."""

from __future__ import annotations

from typing import Any

import msgspec

from gpusage.cli.figures import duration, size
from gpusage.experience.finished_jobs import describe_waiting, suggest_next_request
from gpusage_hooks.types import Allocation, DecisionRecord, Usage
from gpusage_hooks.units import percent

_ENDS = {
    "completed": "completed",
    "failed": "failed",
    "out_of_memory": "ran out of GPU memory",
    "interrupted": "was interrupted (by a signal, its node, the host's memory or a missing command)",
    "cancelled": "was cancelled",
    "timed_out": "reached its time limit",
    "unknown": "ended",
}


def usage_document(usage: Usage, record: DecisionRecord | None) -> dict[str, Any]:
    """Return *usage* as JSON, with what follows from it."""
    fields: dict[str, Any] = msgspec.to_builtins(usage)
    return fields | {
        "waits_for": describe_waiting(usage) or None,
        "ask_next_time": suggest_next_request(usage, record) or None,
    }


def usage_line(usage: Usage, record: DecisionRecord | None, before: str) -> str:
    """Return one run of a job on one line.

    Args:
        usage: Of the run.
        record: What was decided of the job, where that is known.
        before: The request as the user wrote it; empty where that is unknown.
    """
    advice = suggest_next_request(usage, record)
    parts = [
        *([f"asked {before}"] if before else []),
        f"got {_granted(usage.granted)}{f' of one {usage.gpu}' if usage.gpu else ''}",
        f"used {_usage_text(usage)}",
        f"{_ENDS[usage.outcome]} after {duration(usage.ended_at_s - usage.started_at_s)}",
    ]
    verdict = describe_waiting(usage)
    return "; ".join(
        [
            ", ".join(parts),
            *([f"it {verdict}"] if verdict else []),
            *([f"request next time: {advice}"] if advice else []),
        ]
    )


def _granted(granted: Allocation) -> str:
    share = "all" if granted.share_percent == 100 else f"{granted.share_percent} %"  # all of it
    return share + (f" ({granted.trouble})" if granted.trouble else "")


def _usage_text(usage: Usage) -> str:
    figures = [
        *([f"{percent(usage.gpu_utilization)} of its time"] if usage.gpu_utilization is not None else []),
        *([f"{percent(usage.sm_activity)} of its SMs"] if usage.sm_activity is not None else []),
        *([size(usage.memory_bytes)] if usage.memory_bytes is not None else []),
    ]
    return ", ".join(figures) or "an unknown amount"
