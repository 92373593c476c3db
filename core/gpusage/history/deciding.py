"""A job that names no model -> what its history tells, and the case that policies decide.

Invariants:

1. No GPU type is preferred and none required: how fast the job is on which, nothing tells.
2. A share is in question only where history tells both memory and utilization on every GPU that the job may have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpusage.history.features import request_words
from gpusage.history.history import Find, History
from gpusage.history.needs import need_of, prices_of
from gpusage.mark import UNNAMED
from gpusage.policies.shares.price import priced_percents
from gpusage.predictors.known import first_known
from gpusage_hooks.types import (
    STAGES,
    Case,
    Cluster,
    Figure,
    Gpu,
    Job,
    JobIdentity,
    Known,
    ModelGraph,
    Place,
    Rules,
    Stage,
    Workload,
)
from gpusage_hooks.units import gib, percent

BY_HISTORY: tuple[Stage, ...] = tuple(stage for stage in STAGES if stage not in ("generation", "slo"))
NO_GRAPH = ModelGraph(name="", source="", nodes=(), producers=(), inputs=(), parameter_count=0)
"""In the place of the model of a job that names none; plugins that know the job by its name may tell of it."""
NOTHING_TOLD = "its history tells nothing yet"


def identity_of(job: Job) -> JobIdentity:
    """Return what the submission of *job* tells."""
    who = job.submitter
    return JobIdentity(
        user=who.user,
        account=who.account,
        job_name=who.job_name,
        script_digest=who.script_digest,
        request=request_words(job.request),
    )


def told_of(
    job: Job, gpus: Sequence[Gpu], answers: Sequence[Sequence[Known]], history: History | None, find: Find
) -> Mapping[str, Known]:
    """Return what plugins, in *answers*, or else *history* tell of *job* alone on each of *gpus*, by its name."""
    identity = identity_of(job) if history is not None else None
    own = [history.known(identity, gpu, find) if history and identity else Known() for gpu in gpus]
    rows = zip(gpus, first_known([*answers, own], gpus), strict=True)
    return {gpu.name: known for gpu, known in rows if known != Known()}


def case_of(
    job: Job, cluster: Cluster, gpus: Mapping[str, Gpu], told: Mapping[str, Known], rules: Rules
) -> Case | None:
    """Return what policies decide of *job*; ``None`` where *told* is not enough.

    Args:
        job: It names no model.
        cluster: As the job sees it.
        gpus: The catalogue's rows, by the names that pools have.
        told: By the names of these rows.
        rules: The site's.
    """
    places = []
    for pool in cluster.pools:
        if pool.gpu is None:
            continue
        gpu = gpus[pool.gpu]
        known = told.get(gpu.name, Known())
        need = need_of(known, gpu)
        if need is None:
            return None
        shares = prices_of(need, priced_percents(rules.sharing))
        places.append(Place(pool=pool, gpu=gpu, need=need, shares=shares, known=known))
    bound = replace(rules, sharing=replace(rules.sharing, bind="never"))
    return Case(request=job.request, workload=Workload(), places=tuple(places), cluster=cluster, rules=bound)


def said(told: Mapping[str, Known]) -> tuple[str, ...]:
    """Return what *told* says of a job, as reasons: that it names no model, and what its history tells."""
    busy = _dearest({gpu: known.gpu_utilization for gpu, known in told.items()})
    held = _dearest({gpu: known.memory_bytes for gpu, known in told.items()})
    first = busy or held
    if first is None:
        return UNNAMED, NOTHING_TOLD
    figures = []
    if busy:
        where = f" on {busy[0]}" if len(told) > 1 else ""
        figures += [f"busy {percent(busy[1].interval.value)} (up to {percent(busy[1].interval.high)}){where}"]
    if held:
        figures += [f"{gib(held[1].interval.value)} (up to {gib(held[1].interval.high)})"]
    return UNNAMED, f"{first[1].source}: {', '.join(figures)}"


def _dearest(figures: Mapping[str, Figure | None]) -> tuple[str, Figure] | None:
    """Return the GPU whose figure has the highest end, with the figure; ``None`` where none has one."""
    known = [(gpu, figure) for gpu, figure in figures.items() if figure is not None]
    return max(known, key=lambda item: item[1].interval.high) if known else None
