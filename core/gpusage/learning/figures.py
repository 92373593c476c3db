"""A finding -> what is known of the job alone on each whole GPU, and what its shares cost at least.

Invariants:

1. What a job did on one GPU says what its host allows there; on another GPU it waits for a host as fast or as slow as
   hosts are apart.
2. On a share that was idle at times the host decided, and the GPU's own time is known by how much longer the share
   makes it. A share that was full tells only how busy the job is at least: unless more is known, it may be so busy that
   it gets a whole GPU once, which tells the rest.
3. Shares get dearer by what was observed, never cheaper than predicted: a host that is slow makes them cheap by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

from gpusage.devices.shares import shares_of
from gpusage.learning.findings import Experience, Finding, Habit
from gpusage.learning.promises import PARTNERS, WAITS_FOR_HOST
from gpusage.learning.windows import at_most_one
from gpusage.learning.words import counted
from gpusage.predictors.known import HOSTS_APART, NOTHING_KNOWN
from gpusage.predictors.learned.intervals import around, product, ratio
from gpusage.predictors.question import Question, question_of
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Figure, Gpu, Interval, Known, ModelGraph, Workload
from gpusage_hooks.units import WHOLE_PERCENT

Find = Callable[[str], Gpu]
GROWTH_FACTOR = 1.3
"""Between how much longer a share makes the GPU's own time, and how much longer it is predicted to."""


def known_of(
    finding: Finding, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], find: Find
) -> tuple[Known, ...]:
    """Return what *finding* tells of a job alone on each of *gpus*; nothing of slices.

    Args:
        finding: As `Learned.find` returns it.
        graph: The job's model.
        workload: How it is run.
        gpus: Those that are asked about.
        find: Returns a GPU of the catalogue by its name.
    """
    question = question_of(graph, workload)
    if finding.experience is not None:
        return _by_experience(finding.experience, finding.whose, question, gpus, find)
    if finding.habit is not None:
        return _by_habit(finding.habit, question, gpus)
    return (NOTHING_KNOWN,) * len(gpus)


def dearer(experience: Experience, gpu: Gpu, percents: Sequence[int], slowdowns: Sequence[Interval]) -> list[Interval]:
    """Return *slowdowns*, one for each of *percents* of *gpu*, at least as high as the job's own runs showed.

    Args:
        experience: Of the job.
        gpu: A whole GPU.
        percents: Shares of it; of the whole one nothing is changed.
        slowdowns: As predicted.
    """
    predicted = {percent: slowdown.value for percent, slowdown in zip(percents, slowdowns, strict=True)}
    shares = [percent for percent in percents if percent < WHOLE_PERCENT]
    observed = {percent: value for (name, percent), value in experience.slowdown.items() if name == gpu.name}
    factor = 1.0
    for percent, value in observed.items() if shares else ():
        nearest = min(shares, key=lambda share: abs(share - percent))
        factor = max(factor, value / PARTNERS / predicted[nearest])
    return [
        slowdown if percent == WHOLE_PERCENT else _times(slowdown, factor)
        for percent, slowdown in zip(percents, slowdowns, strict=True)
    ]


def _by_experience(
    experience: Experience, whose: str, question: Question, gpus: Sequence[Gpu], find: Find
) -> tuple[Known, ...]:
    source = counted(experience.run_count, whose)
    memory = experience.memory_bytes
    figure = Figure(interval=memory, source=source) if memory else None
    floors = _floors(experience, question, find)
    known = []
    for gpu in gpus:
        utilization = None if gpu.cut_from or not floors else _utilization_on(gpu, floors, question)
        known.append(
            Known(
                step_time_s=_step_time(gpu, utilization, question, source) if utilization else None,
                gpu_utilization=Figure(interval=utilization, source=source) if utilization else None,
                memory_bytes=None if gpu.cut_from else figure,
            )
        )
    return tuple(known)


def _floors(experience: Experience, question: Question, find: Find) -> list[tuple[Gpu, Interval]]:
    """Return the utilization alone on whole GPUs, the best known first."""
    by_worth = sorted(experience.utilization, key=lambda place: (place[1], experience.utilization_runs[place]))
    floors: list[tuple[Gpu, Interval]] = []
    for name, percent in reversed(by_worth):
        utilization = experience.utilization[name, percent]
        try:
            gpu = find(name)
        except DeviceError:  # the catalogue does not know it
            continue
        if percent == WHOLE_PERCENT:
            floors.append((gpu, utilization))
        elif utilization.value < WAITS_FOR_HOST:
            growth = _growth(gpu, percent, question)
            floors.append((gpu, product(utilization, around(1.0 / growth, GROWTH_FACTOR))))
        elif not floors:
            least = utilization.value / _growth(gpu, percent, question)
            floors.append((gpu, Interval(value=sqrt(least), low=least, high=1.0)))
    return floors


def _utilization_on(gpu: Gpu, floors: Sequence[tuple[Gpu, Interval]], question: Question) -> Interval | None:
    """Return the utilization on *gpu*, or ``None`` where what is known of other GPUs does not tell."""
    for seen_on, utilization in floors:
        if seen_on.name == gpu.name:
            return at_most_one(utilization)
    seen_on, utilization = floors[0]
    if utilization.value >= WAITS_FOR_HOST:
        return None
    there_s, here_s = question.timing((seen_on, gpu)).busy_s.tolist()
    return at_most_one(product(utilization, around(here_s / there_s, HOSTS_APART)))


def _step_time(gpu: Gpu, utilization: Interval, question: Question, source: str) -> Figure | None:
    """Return the step time where the host decides it: the GPU's own time over its part of the step."""
    if utilization.value >= WAITS_FOR_HOST:
        return None
    (busy_s,) = question.timing((gpu,)).busy_s.tolist()
    (step_s,) = question.step_time_s((gpu,))
    return Figure(interval=ratio(_times(step_s, busy_s / step_s.value), utilization), source=source)


def _growth(gpu: Gpu, percent: int, question: Question) -> float:
    """Return how many times as long the GPU's own time is on a share."""
    whole_s, share_s = question.kernels_s((gpu, *shares_of(gpu, (percent,)))).tolist()
    return max(float(share_s / whole_s), 1.0)


def _by_habit(habit: Habit, question: Question, gpus: Sequence[Gpu]) -> tuple[Known, ...]:
    source = f"{habit.job_count} other jobs of this kind"
    predicted = [activity.gpu_utilization.value for activity in question.activity(gpus)]
    return tuple(
        NOTHING_KNOWN
        if gpu.cut_from
        else Known(gpu_utilization=Figure(interval=at_most_one(_times(habit.ratio, value)), source=source))
        for gpu, value in zip(gpus, predicted, strict=True)
    )


def _times(interval: Interval, factor: float) -> Interval:
    return Interval(value=interval.value * factor, low=interval.low * factor, high=interval.high * factor)
