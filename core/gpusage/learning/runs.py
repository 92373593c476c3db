"""One run of a job beside what was predicted for it: a usage and its decision's record -> a run.

Invariants:

1. What was not looked at for long enough, or beside others, is ``None``, never a guess.
2. Only runs that came to their end count: a job that failed or was cancelled did not do its work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpusage.hindsight import LEAST_UTILIZATION, SOUND, own_utilization
from gpusage.learning.identity import manner_of
from gpusage.store.usage_rows import Observation
from gpusage_hooks.types import Code, DecisionRecord, Granted, JobIdentity, Usage
from gpusage_hooks.units import WHOLE_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run showed.

    Attributes:
        identity: Of the job.
        manner: How its model was run, as `manner_of` has it.
        gpu: On which it ran.
        share_percent: Of that GPU's SMs that it might use; 100 for all of them.
        ended_at_s: When it ended, seconds since 1970.
        duration_s: How long it ran to its end; ``None`` where it did not come to it.
        utilization: NVML's, alone on the GPU, 0 to 1.
        memory_bytes: Its peak.
        memory_limit_bytes: The cap that it kept within; ``None`` where it had none.
        lacked_memory: It died of too little.
        predicted_utilization: On this GPU, before anything was learned.
        utilization_high: The pessimistic end that its decision rested on.
        promised: The slowdown that a share was decided with, at its pessimistic end; ``None`` where none was decided.
        promised_bytes: The memory that this share was to book.
    """

    identity: JobIdentity
    manner: str
    gpu: str
    share_percent: int
    ended_at_s: float
    duration_s: float | None = None
    utilization: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    lacked_memory: bool = False
    predicted_utilization: float | None = None
    utilization_high: float | None = None
    promised: float | None = None
    promised_bytes: float | None = None


def runs_of(observations: Iterable[Observation], least_sampled_s: float) -> Iterator[tuple[Observation, Run]]:
    """Yield each of *observations* that shows something that can be learned from, with what it shows; see `run_of`."""
    for each in observations:
        run = run_of(each.usage, each.decision, least_sampled_s) if each.decision else None
        if run is not None:
            yield each, run


def run_of(usage: Usage, record: DecisionRecord, least_sampled_s: float) -> Run | None:
    """Return what *usage* shows of the job of *record*; ``None`` where it shows nothing that can be learned from.

    Args:
        usage: Of one run.
        record: Of its decision.
        least_sampled_s: With less, means are mostly start-up.
    """
    if record.identity is None or record.workload is None or usage.granted.division == "slice":
        return None
    sound = usage.outcome in SOUND and usage.sampled_s >= least_sampled_s
    lacked = usage.outcome == "out_of_memory"
    if not sound and not lacked:
        return None
    need = record.decision.need
    here = need is not None and need.gpu == usage.gpu
    shared = record.decision.code is Code.REWRITE and need is not None and need.share_percent < WHOLE_PERCENT
    return Run(
        identity=record.identity,
        manner=manner_of(record.workload),
        gpu=usage.gpu,
        share_percent=_percent(usage.granted),
        ended_at_s=usage.ended_at_s,
        duration_s=usage.ended_at_s - usage.started_at_s if usage.outcome == "completed" else None,
        utilization=_at_least(LEAST_UTILIZATION, own_utilization(usage, least_sampled_s)) if sound else None,
        memory_bytes=usage.memory_bytes or None,
        memory_limit_bytes=usage.granted.memory_limit_bytes,
        lacked_memory=lacked,
        predicted_utilization=record.predicted_utilization if here else None,
        utilization_high=need.gpu_utilization.high if need and here else None,
        promised=need.slowdown.high if need and shared else None,
        promised_bytes=need.share_memory_bytes if need and shared else None,
    )


def _percent(granted: Granted) -> int:
    """Return the percentage of the SMs that a job had: where nothing held it to its share, it had them all."""
    if granted.division == "whole":
        return WHOLE_PERCENT
    return granted.thread_percent or granted.share_percent


def _at_least(least: float, figure: float | None) -> float | None:
    return None if figure is None else max(least, figure)
