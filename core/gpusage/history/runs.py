"""One run as history has it: a usage and its decision's record -> a past run.

Invariants:

1. What was not looked at for long enough, or beside others, is ``None``, never a guess.
2. Utilization counts on whole GPUs only: what a share makes of it takes nothing away from what led to the share. A job
   that is busier on its share than what was told of it allows has changed, and may be as busy as can be.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpusage.hindsight import LEAST_UTILIZATION, SOUND, is_beside_others
from gpusage_hooks.types import DecisionRecord, JobIdentity, Known, Usage
from gpusage_hooks.units import WHOLE_PERCENT

LACKING_MARGIN = 1.25
"""How much more than what it died of a job is taken to need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """What one run of a job showed.

    Attributes:
        identity: What its submission told.
        gpu: By its name of the catalogue.
        started_at_s: Seconds since 1970.
        ended_at_s: Only from then on it is known.
        utilization: NVML's over the busiest minute, alone on the whole GPU, 0 to 1; 1 where a share showed that the job
            has changed.
        memory_bytes: Its peak.
    """

    identity: JobIdentity
    gpu: str
    started_at_s: float
    ended_at_s: float
    utilization: float | None = None
    memory_bytes: float | None = None


def past_run(usage: Usage, record: DecisionRecord, least_sampled_s: float) -> PastRun | None:
    """Return what *usage* shows of the job of *record*; ``None`` where it shows nothing that counts.

    Args:
        usage: Of one run.
        record: Of its decision.
        least_sampled_s: With less, figures are mostly of the start.
    """
    lacked = usage.outcome == "out_of_memory"
    sound = usage.outcome in SOUND and usage.sampled_s >= least_sampled_s
    if record.identity is None or not usage.gpu or not (sound or lacked):
        return None
    run = PastRun(
        identity=record.identity,
        gpu=usage.gpu,
        started_at_s=usage.started_at_s,
        ended_at_s=usage.ended_at_s,
        utilization=None if lacked else _utilization(usage, record),
        memory_bytes=_memory_bytes(usage, lacked=lacked),
    )
    return run if run.utilization or run.memory_bytes else None


def _utilization(usage: Usage, record: DecisionRecord) -> float | None:
    peak, division = usage.peak_utilization, usage.granted.division
    if peak is None or division == "slice" or is_beside_others(usage):
        return None
    if division == "whole":
        return min(max(peak, LEAST_UTILIZATION), 1.0)
    percent = usage.granted.thread_percent or usage.granted.share_percent
    told = record.told.get(usage.gpu, Known()).gpu_utilization
    # On a share the GPU's own time is at most as many times as long as the share has fewer SMs.
    return 1.0 if told is not None and peak * percent / WHOLE_PERCENT > told.interval.high else None


def _memory_bytes(usage: Usage, *, lacked: bool) -> float | None:
    if not lacked:
        return float(usage.memory_bytes) if usage.memory_bytes else None
    had = max(usage.memory_bytes or 0, usage.granted.memory_limit_bytes or 0)
    return LACKING_MARGIN * had if had else None
