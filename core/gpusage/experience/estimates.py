"""A finding -> figures of the job alone on each whole GPU, and the least price of its shares.

Invariants:

1. A job's runs on one GPU show the pace that its host allows there; with another GPU the host may be faster or slower
   by the factor by which hosts differ.
2. On a share that was idle at times the host decided, and the GPU's own time follows from how much longer the share
   makes it. A share that was full shows only how busy the job is at least: unless more is known, it may be so busy that
   it gets a whole GPU once, which shows the rest.
3. Other users' runs show nothing that two of them could forge, nor what the graph rules out
   (docs/decisions/experience.md): fewer than `LEAST_USERS` show nothing, and each counts once. The point and both ends
   stay within the interval that the graph alone predicts. Two dishonest users move the point no further than the graph
   and an honest one, and the upper end not below an honest one's. They show how busy a GPU is, and nothing else: the
   memory that a job dies without is that of its user's own runs.
4. Observed runs make shares more expensive, never cheaper than predicted: a slow host makes them cheap by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import sqrt
from statistics import median

from gpusage.devices.shares import shares_of
from gpusage.experience.history import PROPORTIONAL_MEMORY, GpuLookup
from gpusage.experience.identity import LEAST_USERS
from gpusage.experience.learned import Experience, FamilyRatio, Finding, run_count
from gpusage.experience.trust import PARTNERS, WAITS_FOR_HOST
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.intervals import clip_to_one, interval_around, product, ratio, scaled
from gpusage.predictors.known import HOSTS_APART, NOTHING_KNOWN
from gpusage.predictors.sharing.slowdown import growths
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Figure, Gpu, GpuNeed, Interval, ModelGraph, ObservedFigures, Price, Workload
from gpusage_hooks.units import WHOLE_PERCENT

GROWTH_FACTOR = 1.3
"""Between how much longer a share makes the GPU's own time, and how much longer it is predicted to."""


def own_figures(
    finding: Finding, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], find_gpu: GpuLookup
) -> tuple[ObservedFigures, ...]:
    """Return the figures of a job alone on each of *gpus* by its user's runs in *finding*; none of slices.

    Args:
        finding: As `Learned.find` returns it.
        graph: The job's model.
        workload: How it is run.
        gpus: Whole ones and slices.
        find_gpu: Returns a GPU of the catalogue by its name.
    """
    analysis = analyze(graph, workload)
    if finding.experience is not None:
        return _by_experience(finding.experience, finding.source, analysis, gpus, find_gpu)
    if finding.family_ratio is not None:
        return _by_family(finding.family_ratio, analysis, gpus)
    return (NOTHING_KNOWN,) * len(gpus)


def other_users_figures(
    finding: Finding, graph: ModelGraph, workload: Workload, needs: Sequence[tuple[Gpu, GpuNeed]], find_gpu: GpuLookup
) -> tuple[ObservedFigures, ...]:
    """Return the figures of a job alone on each of some whole GPUs by other users' runs in *finding*.

    Args:
        finding: As `Learned.find` returns it.
        graph: The job's model.
        workload: How it is run.
        needs: The GPUs, each with the prediction of the job there by the graph alone.
        find_gpu: Returns a GPU of the catalogue by its name.
    """
    analysis, gpus = analyze(graph, workload), [gpu for gpu, _ in needs]
    source = f"{finding.source} of {len(finding.others)} other users"
    by_user = [
        _by_family(each, analysis, gpus)
        if isinstance(each, FamilyRatio)
        else _by_experience(each, finding.source, analysis, gpus, find_gpu)
        for each in finding.others
    ]
    known = []
    for (_, need), of_gpu in zip(needs, zip(*by_user, strict=True), strict=True):
        observed = [one.gpu_utilization.interval for one in of_gpu if one.gpu_utilization]
        utilization = narrowed(need.gpu_utilization, observed)
        known.append(
            ObservedFigures(gpu_utilization=Figure(interval=utilization, source=source) if utilization else None)
        )

    return tuple(known)


def narrowed(predicted: Interval, observed: Sequence[Interval]) -> Interval | None:
    """Return *predicted*, narrowed by several users' runs and with its point moved; ``None`` where users are too few.

    Args:
        predicted: By the graph alone.
        observed: The interval of each user's runs.
    """
    if len(observed) < LEAST_USERS:
        return None

    low, high = min(each.low for each in observed), max(each.high for each in observed)

    # The median of the users, but no further from the graph's point than `LEAST_USERS` of them are.
    values = sorted(each.value for each in observed)
    point, middle = predicted.value, median(values)
    if middle < point:
        point = min(point, max(middle, values[LEAST_USERS - 1]))
    else:
        point = max(point, min(middle, values[-LEAST_USERS]))
    low, point, high = (min(max(end, predicted.low), predicted.high) for end in (low, point, high))
    return Interval(value=point, low=low, high=high)


def raise_prices(experience: Experience, prices: tuple[Price, ...]) -> tuple[Price, ...]:
    """Return *prices*, of shares of one GPU, raised to the slowdown of the job's own runs there, beside partners."""
    shares = {each.share_percent: each for each in prices if each.share_percent < WHOLE_PERCENT}
    factor = 1.0
    for (gpu, percent), value in experience.slowdown.items():
        if shares and gpu == prices[0].gpu:
            # Partners slowed the observed runs down, too.
            nearest = shares[min(shares, key=lambda share: abs(share - percent))]
            factor = max(factor, value / PARTNERS / nearest.slowdown_under_contention.value)

    for percent, each in shares.items():
        contended = scaled(each.slowdown_under_contention, factor)
        shares[percent] = replace(each, slowdown=scaled(each.slowdown, factor), contended_slowdown=contended)
    return tuple(shares.get(each.share_percent, each) for each in prices)


def _by_experience(
    experience: Experience, runs: str, analysis: WorkloadAnalysis, gpus: Sequence[Gpu], find_gpu: GpuLookup
) -> tuple[ObservedFigures, ...]:
    source = run_count(experience.run_count, runs)
    memory = experience.memory_bytes
    figure = Figure(interval=memory, source=source) if memory else None
    floors = _host_floors(experience, analysis, find_gpu)

    # A job that took most of what it saw may take as much of any GPU: an engine, or a library that allocates first.
    memory_share = experience.walled_share
    for name, peak_bytes in experience.peak_bytes.items():
        with suppress(DeviceError):  # the catalogue does not know it
            memory_share = max(memory_share, peak_bytes / find_gpu(name).memory_bytes)
    known = []
    for gpu in gpus:
        # Of a slice only a run on such a slice shows how busy it is: its memory and its bandwidth are others.
        shown = [floor for floor in floors if floor[0] == gpu] if gpu.parent_gpu else floors
        utilization = _utilization_on(gpu, shown, analysis) if shown else None
        known.append(
            ObservedFigures(
                step_time_s=_step_time(gpu, utilization, analysis, source) if utilization else None,
                gpu_utilization=Figure(interval=utilization, source=source) if utilization else None,
                memory_bytes=figure,
                memory_share=memory_share if memory_share > PROPORTIONAL_MEMORY else None,
            )
        )

    return tuple(known)


def _host_floors(experience: Experience, analysis: WorkloadAnalysis, find_gpu: GpuLookup) -> list[tuple[Gpu, Interval]]:
    """Return the utilization alone on whole GPUs, the best known first."""
    # The larger a share, the less of its figure is inferred; of equal ones, more runs count more.
    by_runs = sorted(experience.utilization, key=lambda share: (share[1], experience.utilization_runs[share]))
    floors: list[tuple[Gpu, Interval]] = []
    for name, percent in reversed(by_runs):
        utilization = experience.utilization[name, percent]
        try:
            gpu = find_gpu(name)
        except DeviceError:  # the catalogue does not know it
            continue

        if percent == WHOLE_PERCENT:
            floors.append((gpu, utilization))
        elif utilization.value < WAITS_FOR_HOST:
            # The host decides the step on the share, too, so the GPU's own time is shorter by the growth.
            growth = _growth(gpu, percent, analysis)
            floors.append((gpu, product(utilization, interval_around(1.0 / growth, GROWTH_FACTOR))))
        elif not floors:
            # A full share: the job is this busy at least. The point is the geometric middle of what is possible.
            least = utilization.value / _growth(gpu, percent, analysis)
            floors.append((gpu, Interval(value=sqrt(least), low=least, high=1.0)))

    return floors


def _utilization_on(gpu: Gpu, floors: Sequence[tuple[Gpu, Interval]], analysis: WorkloadAnalysis) -> Interval | None:
    """Return the utilization on *gpu*, or ``None`` where runs on other GPUs do not show it."""
    for floor_gpu, utilization in floors:
        if floor_gpu.name == gpu.name:
            return clip_to_one(utilization)

    # A full GPU does not show how long its host takes.
    floor_gpu, utilization = floors[0]
    if utilization.value >= WAITS_FOR_HOST:
        return None

    # The host's time stays; the GPU's own changes by the ratio of two predictions.
    floor_s, busy_s = analysis.timing((floor_gpu, gpu)).busy_s.tolist()
    return clip_to_one(product(utilization, interval_around(busy_s / floor_s, HOSTS_APART)))


def _step_time(gpu: Gpu, utilization: Interval, analysis: WorkloadAnalysis, source: str) -> Figure | None:
    """Return the step time where the host decides it: the GPU's own time over its part of the step."""
    if utilization.value >= WAITS_FOR_HOST:
        return None
    (busy_s,) = analysis.timing((gpu,)).busy_s.tolist()
    (step_s,) = analysis.step_time_s((gpu,))
    return Figure(interval=ratio(scaled(step_s, busy_s / step_s.value), utilization), source=source)


def _growth(gpu: Gpu, percent: int, analysis: WorkloadAnalysis) -> float:
    """Return how many times as long the GPU's own time is on a share."""
    return float(growths(analysis, (gpu,), (shares_of(gpu, (percent,)),))[0])


def _by_family(family: FamilyRatio, analysis: WorkloadAnalysis, gpus: Sequence[Gpu]) -> tuple[ObservedFigures, ...]:
    source = f"{family.job_count} other jobs of this kind"
    predicted = [activity.gpu_utilization.value for activity in analysis.activity(gpus)]
    return tuple(
        NOTHING_KNOWN
        if gpu.parent_gpu
        else ObservedFigures(gpu_utilization=Figure(interval=clip_to_one(scaled(family.ratio, value)), source=source))
        for gpu, value in zip(gpus, predicted, strict=True)
    )
