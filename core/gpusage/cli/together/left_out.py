"""Jobs that cannot be ranked as partners on one GPU, because nothing was recorded of them that counts there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpusage_hooks.types import AnnotatedJob, DecisionRecord, Gpu, GpuNeed


class LeftOut(NamedTuple):
    """One such job, and why it is none of the candidates: a few words that follow its number."""

    job: AnnotatedJob
    why: str


def recorded_need(record: DecisionRecord | None, gpu: Gpu) -> GpuNeed | None:
    """Return what was predicted of a job for *gpu*; ``None`` where nothing was."""
    need = record.decision.need if record else None
    return need if need is not None and need.gpu == gpu.name else None


def left_out(jobs: Iterable[tuple[AnnotatedJob, DecisionRecord | None]], gpu: Gpu) -> list[LeftOut]:
    """Return those of *jobs*, given with their records, of which nothing is predicted for *gpu*."""
    return [LeftOut(job, _left_out_reason(record)) for job, record in jobs if recorded_need(record, gpu) is None]


def note(jobs: Sequence[LeftOut], gpu: Gpu) -> str:
    """Return how many are left out and why, as one sentence; empty where none is."""
    reasons = [f"{count} {why}" for why, count in Counter(each.why for each in jobs).most_common()]
    number = f"{len(jobs)} {'job is' if len(jobs) == 1 else 'jobs are'}"
    return f"{number} left out, with no prediction for {gpu.name} in the store: {', '.join(reasons)}." if jobs else ""


def _left_out_reason(record: DecisionRecord | None) -> str:
    if record is None:
        return "with no record that you may read"
    need = record.decision.need
    return "predicted for no GPU" if need is None else f"predicted for {need.gpu}"
