"""One run of a job, with its prediction: a usage and its decision's record -> a run.

Invariants:

1. A figure that was not sampled for long enough, or beside other jobs on the GPU, is ``None``, never a guess.
2. Only runs that came to their end count: a job that failed or was cancelled did not do its work. One that ran out of
   memory shows nothing but that.
3. The peak utilization is that of whole GPUs only: what a share makes of it takes nothing away from what led to the
   share. A job that is busier on its share than its estimate allows has changed, and may be as busy as can be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING

from gpusage.experience.finished_jobs import LEAST_UTILIZATION, SOUND, is_same_run, own_utilization, was_gpu_shared
from gpusage.experience.identity import settings_key
from gpusage_hooks.types import Allocation, Code, DecisionRecord, JobIdentity, ObservedFigures, Usage
from gpusage_hooks.units import WHOLE_PERCENT

if TYPE_CHECKING:
    from gpusage.store.rows import Observation  # what decides has no store

WINDOW_RUNS = 12
"""The newest runs that count: of one job on one GPU and percentage, or of one similarity key on one GPU."""
OUT_OF_MEMORY_MARGIN = 1.25
"""The assumed need of a job that ran out of memory, over the memory that it had."""
LEAST_TIMED = 4
"""Runs, on the share and on the whole GPU together, whose durations show how much longer the share takes."""
LARGEST_SPREAD = 1.25
"""Between the longest and the shortest of either; beyond it the job does not do the same each time."""
LARGEST_SLOWDOWN = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a job, and its figures.

    Attributes:
        identity: Of the job.
        gpu: On which it ran, by its name of the catalogue; empty where nobody knows.
        share_percent: Of that GPU's SMs that it could use; 100 for all of them.
        is_slice: It ran on a MIG slice.
        settings: Of its model, by `settings_key`; empty where it named none.
        started_at_s: When it started, seconds since 1970.
        ended_at_s: When it ended; nobody knows of it before.
        duration_s: How long it ran to its end; ``None`` where it did not come to it.
        utilization: NVML's mean, alone on the GPU, 0 to 1.
        peak_utilization: NVML's of the busiest minute, alone on the whole GPU; 1 where a share showed a change.
        memory_bytes: Its peak.
        memory_limit_bytes: Its limit on memory; ``None`` where it had none.
        is_walled: That limit was a wall, and so the size of the GPU that it saw.
        out_of_memory: It died of too little memory.
        predicted_utilization: On this GPU, before anything was learned.
        utilization_high: The pessimistic end that its decision rested on.
        promised_slowdown: That a share was decided with, at its pessimistic end; ``None`` where none was decided.
        promised_memory_bytes: The memory that this share was to book.
    """

    identity: JobIdentity
    gpu: str
    share_percent: int = WHOLE_PERCENT
    is_slice: bool = False
    settings: str = ""
    started_at_s: float
    ended_at_s: float
    duration_s: float | None = None
    utilization: float | None = None
    peak_utilization: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    is_walled: bool = False
    out_of_memory: bool = False
    predicted_utilization: float | None = None
    utilization_high: float | None = None
    promised_slowdown: float | None = None
    promised_memory_bytes: float | None = None

    @property
    def required_bytes(self) -> float | None:
        """Return the memory that the run needed: its peak, or more than it had where that was too little."""
        if not self.out_of_memory:
            return self.memory_bytes
        had_bytes = max(self.memory_bytes or 0, self.memory_limit_bytes or 0) or self.promised_memory_bytes
        return OUT_OF_MEMORY_MARGIN * had_bytes if had_bytes else None

    @property
    def job(self) -> tuple[str, str, str, str]:
        """Return the key of all runs of one job that names a model."""
        return self.identity.fingerprint, self.settings, self.identity.user, self.identity.job_name


def runs_of(observations: Iterable[Observation], least_sampled_s: float) -> Iterator[tuple[Observation, Run]]:
    """Yield each of *observations* that shows something, with its run; see `run_of`.

    Of a run on several nodes, that of the node counts whose GPUs held most.
    """
    by_job: dict[tuple[str, str, str], list[Observation]] = defaultdict(list)
    # The node with the most memory comes first, and stands for the others of the same run.
    for each in sorted(observations, key=lambda each: each.usage.memory_bytes or 0, reverse=True):
        job = by_job[each.usage.manager, each.usage.job_id, each.usage.number]
        if each.usage.gpu_count is None or not any(is_same_run(each.usage, other.usage) for other in job):
            job.append(each)

    for observation in chain.from_iterable(by_job.values()):
        run = run_of(observation.usage, observation.decision, least_sampled_s) if observation.decision else None
        if run is not None:
            yield observation, run


def model_runs(observations: Iterable[Observation], least_sampled_s: float) -> Iterator[tuple[Observation, Run]]:
    """Return those of `runs_of` that show something of a model."""
    return ((each, run) for each, run in runs_of(observations, least_sampled_s) if run.settings)


def history_runs(observations: Iterable[Observation], least_sampled_s: float) -> Iterator[tuple[Observation, Run]]:
    """Return those of `runs_of` that show the peak utilization or the memory on a known GPU, with a model or not."""
    rows = runs_of(observations, least_sampled_s)
    return ((each, run) for each, run in rows if run.gpu and (run.peak_utilization or run.required_bytes))


def run_of(usage: Usage, record: DecisionRecord, least_sampled_s: float) -> Run | None:
    """Return the run of *usage*; ``None`` where it shows nothing.

    Args:
        usage: Of one run.
        record: Of its decision.
        least_sampled_s: With less, figures are mostly of the start.
    """
    is_sound = usage.outcome in SOUND and usage.sampled_s >= least_sampled_s
    out_of_memory = usage.outcome == "out_of_memory"
    if record.identity is None or not (is_sound or out_of_memory):
        return None

    # A prediction for another GPU than the job got cannot be compared with the run.
    need = record.decision.need
    is_predicted = need is not None and need.gpu == usage.gpu
    is_shared = record.decision.code is Code.REWRITE and need is not None and need.share_percent < WHOLE_PERCENT

    return Run(
        identity=record.identity,
        gpu=usage.gpu,
        share_percent=_usable_percent(usage.granted),
        is_slice=usage.granted.division == "slice",
        settings=settings_key(record.workload) if record.workload else "",
        started_at_s=usage.started_at_s,
        ended_at_s=usage.ended_at_s,
        duration_s=usage.ended_at_s - usage.started_at_s if usage.outcome == "completed" else None,
        utilization=_at_least(LEAST_UTILIZATION, own_utilization(usage, least_sampled_s)) if is_sound else None,
        peak_utilization=_peak_utilization(usage, record) if is_sound else None,
        memory_bytes=usage.memory_bytes or None,
        memory_limit_bytes=usage.granted.memory_limit_bytes,
        is_walled=usage.granted.limited_by == "wall",
        out_of_memory=out_of_memory,
        predicted_utilization=record.predicted_utilization if is_predicted else None,
        utilization_high=need.gpu_utilization.high if need and is_predicted else None,
        promised_slowdown=need.slowdown.high if need and is_shared else None,
        promised_memory_bytes=need.share_memory_bytes if need and is_shared else None,
    )


def slowdown_of(run: Run, runs: Iterable[Run]) -> float | None:
    """Return how many times as long *run* took as whole ones among *runs* on that GPU; ``None`` as in `slowdown`."""
    durations_s: dict[int, list[float]] = {run.share_percent: [], WHOLE_PERCENT: []}
    for each in runs:
        if each.gpu == run.gpu and each.share_percent in durations_s and each.duration_s is not None:
            durations_s[each.share_percent].append(each.duration_s)
    shared_s, whole_s = (durations_s[percent][-WINDOW_RUNS:] for percent in (run.share_percent, WHOLE_PERCENT))
    return None if run.duration_s is None else slowdown(run.duration_s, shared_s, whole_s)


def slowdown(duration_s: float, shared_s: Sequence[float], whole_s: Sequence[float]) -> float | None:
    """Return *duration_s* over the median of *whole_s*, at least 1; ``None`` where durations are few or disagree.

    Args:
        duration_s: Of a run on a share.
        shared_s: Of all runs of the job on that share.
        whole_s: Of all runs of the job on the whole GPU.
    """
    # Runs that differ among themselves, by other data or another argument, show nothing of the share.
    for durations_s in (shared_s, whole_s):
        if not durations_s or not 0 < max(durations_s) <= LARGEST_SPREAD * min(durations_s):
            return None
    if len(shared_s) + len(whole_s) < LEAST_TIMED:
        return None
    return min(max(duration_s / median(whole_s), 1.0), LARGEST_SLOWDOWN)


def _usable_percent(granted: Allocation) -> int:
    """Return the percentage of the SMs that a job could use: where nothing held it to its share, all of them."""
    return WHOLE_PERCENT if granted.division == "whole" else granted.thread_percent or granted.share_percent


def _peak_utilization(usage: Usage, record: DecisionRecord) -> float | None:
    peak = usage.peak_utilization
    if peak is None or usage.granted.division == "slice" or was_gpu_shared(usage):
        return None
    # A run that nothing held to its share had the whole GPU.
    if usage.granted.division == "whole":
        return _at_least(LEAST_UTILIZATION, min(peak, 1.0))

    # A share makes the GPU's own time at most as many times as long as it has fewer SMs.
    least = peak * _usable_percent(usage.granted) / WHOLE_PERCENT
    estimate = record.history_estimates.get(usage.gpu, ObservedFigures()).gpu_utilization
    return 1.0 if estimate is not None and least > estimate.interval.high else None


def _at_least(least: float, figure: float | None) -> float | None:
    return None if figure is None else max(least, figure)
