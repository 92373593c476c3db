"""A job that names no model -> estimates by its history, and the input of policies.

Invariants:

1. No GPU type is preferred and none required: history does not show how fast the job is on which.
2. A share is in question only where history has estimates of memory and utilization on every GPU the job may have.
3. Nothing shows how a job's kernels grow on fewer SMs, so they are taken to grow as much as they can: a share with a
   quarter of the SMs makes the GPU's own time four times as long. The GPU's earlier waiting absorbs that in part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusage.experience.identity import job_identity
from gpusage.policies.share_price import priced_percents
from gpusage.predictors.intervals import exact_interval
from gpusage.predictors.known import first_known
from gpusage.store.annotation import UNNAMED
from gpusage_hooks.types import (
    STAGES,
    Candidate,
    Cluster,
    Figure,
    Gpu,
    GpuNeed,
    Interval,
    Job,
    ModelGraph,
    ObservedFigures,
    PolicyInput,
    Price,
    Rules,
    Stage,
    Workload,
)
from gpusage_hooks.units import WHOLE_PERCENT, gib, percent

if TYPE_CHECKING:
    from gpusage.experience.history import GpuLookup, History

BY_HISTORY: tuple[Stage, ...] = tuple(stage for stage in STAGES if stage not in ("generation", "slo"))
NO_GRAPH = ModelGraph(name="", source="", nodes=(), producers=(), inputs=(), parameter_count=0)
"""In the place of the model of a job that names none; plugins that know the job by its name may know its figures."""
NO_ESTIMATE = "its history shows nothing yet"
SHARPNESS = 8.0
"""Of `gpusage.predictors.sharing.host`, which needs numpy: a step takes this norm of the GPU's time and the host's."""
OWN_STEP = exact_interval(1.0)
"""No step time is known: the job's own step is the unit."""


def estimates_by_gpu(
    job: Job,
    gpus: Sequence[Gpu],
    answers: Sequence[Sequence[ObservedFigures]],
    history: History | None,
    find_gpu: GpuLookup,
) -> Mapping[str, ObservedFigures]:
    """Return the estimates of *job* alone on each of *gpus*, by its name: of plugins, in *answers*, or of *history*."""
    # A site's plugin may know the job better; history fills in what it leaves open.
    if history is not None:
        identity = job_identity(job.submitter, request=job.request)
        answers = [*answers, [history.known_figures(identity, gpu, find_gpu) for gpu in gpus]]

    return {
        gpu.name: known
        for gpu, known in zip(gpus, first_known(answers, gpus), strict=True)
        if known != ObservedFigures()
    }


def policy_input(
    job: Job, cluster: Cluster, gpus: Mapping[str, Gpu], estimates: Mapping[str, ObservedFigures], rules: Rules
) -> PolicyInput | None:
    """Return the input of policies; ``None`` where *estimates* are not enough.

    Args:
        job: It names no model.
        cluster: As the job sees it.
        gpus: The catalogue's rows, by the names that pools have.
        estimates: By the names of these rows.
        rules: The site's.
    """
    candidates = []
    for pool in cluster.pools:
        if pool.gpu is None:
            continue
        gpu = gpus[pool.gpu]
        known = estimates.get(gpu.name, ObservedFigures())
        need = gpu_need(known, gpu)
        if need is None:
            return None
        shares = share_prices(need, priced_percents(rules.sharing))
        candidates.append(Candidate(pool=pool, gpu=gpu, need=need, shares=shares, known=known))

    # History does not show how fast the job is on which GPU, so no type is required.
    unbound = replace(rules, sharing=replace(rules.sharing, bind="never"))
    return PolicyInput(
        request=job.request,
        workload=Workload(),
        candidates=tuple(candidates),
        cluster=cluster,
        rules=unbound,
        submitter=job.submitter,
    )


def gpu_need(known: ObservedFigures, gpu: Gpu) -> GpuNeed | None:
    """Return the need of a job alone on *gpu*; ``None`` where not both of its figures are *known*."""
    if known.gpu_utilization is None or known.memory_bytes is None:
        return None

    utilization, memory_bytes = known.gpu_utilization.interval, known.memory_bytes.interval

    # SMs and memory are active at most while a kernel runs.
    activity = Interval(value=utilization.value, low=0.0, high=utilization.high)
    return GpuNeed(
        gpu=gpu.name,
        step_time_s=OWN_STEP,
        memory_bytes=memory_bytes,
        gpu_utilization=utilization,
        sm_activity=activity,
        dram_activity=activity,
        throughput_samples_per_s=OWN_STEP,
        fits=memory_bytes.high <= gpu.memory_bytes,
        source="history",
    )


def share_prices(need: GpuNeed, percents: Sequence[int]) -> tuple[Price, ...]:
    """Return the prices of shares of *percents* for a job of *need* alone on the GPU."""
    prices, busy = [], need.gpu_utilization
    for share_percent in percents:
        low, value, high = (largest_slowdown(end, share_percent) for end in (busy.low, busy.value, busy.high))
        slowdown = Interval(value=value, low=low, high=high)
        prices.append(Price(gpu=need.gpu, share_percent=share_percent, slowdown=slowdown))

    return tuple(prices)


def largest_slowdown(utilization: float, share_percent: int) -> float:
    """Return how many times as long a step takes on a share, at most.

    Args:
        utilization: Alone on the whole GPU, 0 to 1.
        share_percent: Of the SMs, 1 to 100.
    """
    # The same norm of the GPU's time and the host's as for a job with a graph; together 1 on the whole GPU.
    busy = utilization * WHOLE_PERCENT / share_percent
    waiting = 1.0 - utilization**SHARPNESS
    return float((busy**SHARPNESS + waiting) ** (1 / SHARPNESS))


def reasons_of(estimates: Mapping[str, ObservedFigures]) -> tuple[str, ...]:
    """Return the reasons of a decision by *estimates*: that the job names no model, and the figures of its history."""
    # The reasons name the GPU on which the job takes most.
    busiest = _highest({gpu: known.gpu_utilization for gpu, known in estimates.items()})
    largest = _highest({gpu: known.memory_bytes for gpu, known in estimates.items()})
    first = busiest or largest
    if first is None:
        return UNNAMED, NO_ESTIMATE

    figures = []
    if busiest:
        where = f" on {busiest[0]}" if len(estimates) > 1 else ""
        utilization = busiest[1].interval
        figures.append(f"busy {percent(utilization.value)} (up to {percent(utilization.high)}){where}")
    if largest:
        memory = largest[1].interval
        figures.append(f"{gib(memory.value)} (up to {gib(memory.high)})")
    return UNNAMED, f"{first[1].source}: {', '.join(figures)}"


def _highest(figures: Mapping[str, Figure | None]) -> tuple[str, Figure] | None:
    """Return the GPU whose figure has the highest end, with the figure; ``None`` where none has one."""
    known = [(gpu, figure) for gpu, figure in figures.items() if figure is not None]
    return max(known, key=lambda item: item[1].interval.high, default=None)
