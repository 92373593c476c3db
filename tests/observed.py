"""A month of a small site: decisions and what their jobs did, the same each time; several tests report on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from gpusage.store.decisions import DecisionStore
from gpusage.store.rows import Observation
from gpusage_hooks.types import Allocation, Code, DecisionRecord, GpuRequest, Interval, JobIdentity, Outcome, Usage
from records import NEED, RECORD, USAGE

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0
HOUR_S = 3600.0
WHOLE = Allocation()
HALF = Allocation(division="percentage", share_percent=50, thread_percent=50)
GIB = 2**30


def record(number: int, *, mode: str = "enforce", percent: int | None = 50, user: str = "ada") -> DecisionRecord:
    """Return the decision *number*: a share of *percent* in place of a GPU, or ``None``, the GPU kept."""
    need = replace(
        NEED,
        memory_bytes=Interval(value=4.0 * GIB, low=3.0 * GIB, high=6.0 * GIB),
        gpu_utilization=Interval(value=0.6, low=0.4, high=0.9),
        slowdown=Interval(value=1.25, low=1.0, high=1.5) if percent else Interval(value=1.0, low=1.0, high=1.0),
        share_percent=percent or 100,
    )
    shared = GpuRequest(gpu_count=0, mps_thread_percent=percent)
    decision = replace(
        RECORD.decision,
        code=Code.REWRITE if percent else Code.KEEP,
        request=shared if percent else GpuRequest(gpu_count=2),
        reasons=(f"a share of {percent} % costs 25 %",) if percent else ("the job asks for 2 GPUs",),
        need=need,
    )
    return replace(
        RECORD,
        number=f"{number:012x}",
        decided_at_s=NOW_S - DAY_S - number * HOUR_S,
        mode=mode,
        origin=user,
        decision=decision,
        identity=JobIdentity(user=user, job_name=f"train{number % 3}", fingerprint=f"{number % 3}", family="resnet"),
        predicted_utilization=0.6,
    )


def usage(decided: DecisionRecord, **rest: object) -> Usage:
    """Return the usage of the job of *decided*: two hours alone on its GPU, a kernel in half of the time."""
    number = int(decided.number, 16)
    usual = replace(
        USAGE,
        number=decided.number,
        job_id=str(100 + number),
        user=decided.origin,
        account="physics" if decided.origin == "ada" else "biology",
        partition="gpu" if number % 2 else "long",
        job_name=f"train{number % 3}",
        granted=WHOLE,
        started_at_s=decided.decided_at_s,
        ended_at_s=decided.decided_at_s + 2 * HOUR_S,
        sampled_s=7100.0,
        alone_s=7100.0,
        gpu_utilization=0.5,
        memory_bytes=5 * GIB,
        cpu_s=3600.0,
    )
    return replace(usual, **rest)  # type: ignore[arg-type]


def month() -> Iterator[Observation]:
    """Yield runs of every kind, the newest first."""
    outcomes: tuple[Outcome, ...] = ("completed", "completed", "failed", "out_of_memory", "timed_out")
    for number in range(40):
        mode = "enforce" if number % 4 else "observe"
        decided = record(number, mode=mode, percent=50 if number % 5 else None, user="ada" if number % 3 else "bob")
        shared = mode == "enforce" and number % 5
        done = usage(
            decided,
            granted=HALF if shared else WHOLE,
            outcome=outcomes[number % 5],
            gpu="v100-sxm2-16gb" if number % 7 else "t4",
            gpu_utilization=None if number % 8 == 7 else (0.001, 0.2, 0.45, 0.7, 0.97)[number % 5],
            alone_s=7100.0 if number % 6 else 2000.0,
        )
        yield Observation(usage=done, decision=decided)


def month_before() -> Iterator[Observation]:
    """Yield some runs of the month before, of jobs that gpusage did not decide, the newest first."""
    for done in (each.usage for each in islice(month(), 12)):
        started_at_s, ended_at_s = done.started_at_s - 30 * DAY_S, done.ended_at_s - 30 * DAY_S
        times = {"started_at_s": started_at_s, "ended_at_s": ended_at_s}
        yield Observation(usage=replace(done, number="", granted=WHOLE, **times), decision=None)


def fill(store: DecisionStore) -> None:
    """Write the month into *store*, the oldest first, with two decisions of jobs that left no usage."""
    observations = [*month()][::-1]
    declined = replace(RECORD.decision, code=Code.DECLINE, reasons=("the job opted out",), need=None)
    others = [replace(record(number), decision=declined) for number in (50, 51)]
    store.record_all([*others, *(each.decision for each in observations if each.decision)])
    store.record_usage([each.usage for each in observations])
