"""`gpusage colocate`: what jobs on one GPU do to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from gpusage.cli import documents, options, partners, tables
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.decisions.advisor import advisor
from gpusage.decisions.prediction import request_with_model_settings
from gpusage.policies.candidates import why_unlimited
from gpusage.predictors.intervals import inverse
from gpusage.predictors.sharing.colocation import WORTHWHILE_SUM, slowdown_with_partners
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Colocation, GpuNeed, Interval, JobState, ModelGraph, ModelRequest, Workload
from gpusage_hooks.units import WHOLE_PERCENT, gib

SCHEMA = "gpusage.colocate/1"
MINIMUM_JOBS = 2
STEP_PERCENT = 5
"""Of the threads that a job may have: each has this part at least, or a multiple of it."""
COLUMNS = (
    tables.Column("job", is_left=True),
    tables.Column("alone"),
    tables.Column("beside the others"),
    tables.Column("MPS threads"),
    tables.Column("memory cap"),
)


class Job(NamedTuple):
    """One model and how it is run, with what its file settles of that."""

    request: ModelRequest
    graph: ModelGraph


def colocate(
    context: click.Context,
    /,
    models: tuple[str, ...],
    gpu: str,
    candidates: Path | None,
    *,
    is_fair: bool,
    as_json: bool,
    **run: Any,  # options
) -> None:
    """Predict the throughput of each MODEL beside the others on one GPU under MPS."""
    is_running, is_waiting = run.pop("is_running"), run.pop("is_waiting")
    state: JobState | None = "running" if is_running else "waiting" if is_waiting else None
    set_options = {"among": candidates is not None, "running": is_running, "queue": is_waiting, "fair": is_fair}
    names = [f"--{name}" for name, is_set in set_options.items() if is_set]
    if len(names) > 1:
        message = f"Options {names[0]} and {names[1]} must not be combined; got both. Leave one out."
        raise click.UsageError(message, context)
    source = candidates or state
    if source is not None:
        context.exit(0 if partners.rank(context, models, source, gpu, run, as_json=as_json) else 1)
    if len(models) < MINIMUM_JOBS:
        message = f"Models must be at least {MINIMUM_JOBS}, they share one GPU; got {len(models)}. Name another one."
        raise click.UsageError(message, context)

    row = advisor().catalogue.find(gpu)
    why = why_unlimited(row) if is_fair else None
    if why:
        message = (
            f"Option --fair must have a GPU on which MPS limits a job's threads; got '{gpu}', which is {why}."
            " Leave --fair out."
        )
        raise click.UsageError(message, context)

    jobs = []
    for request in options.read_requests(models, run):
        graph = read_graph(advisor(), request.model, dict(request.workload.shape))
        jobs.append(Job(request_with_model_settings(request, graph), graph))
    needs = [advisor().predict(job.graph, job.request.workload, [row])[0] for job in jobs]
    colocation = advisor().colocate(needs, row)
    if is_fair:
        colocation = _with_fair_threads(jobs, colocation)
    if as_json:
        names = [job.request.model for job in jobs]
        tables.print_json({"schema": SCHEMA, **documents.colocation(names, colocation)})
    else:
        _show(jobs, needs, colocation)

    context.exit(0 if colocation.recommended else 1)


def _with_fair_threads(jobs: Sequence[Job], together: Colocation) -> Colocation:
    """Return the same jobs, each limited to its part of the threads by max-min fairness."""
    gpu, sizes = advisor().catalogue.find(together.gpu), allowed_percents(len(jobs))
    # Each job's price of each part of the threads, beside as many others as there are.
    prices = []
    for job in jobs:
        (priced,) = advisor().price(job.graph, job.request.workload, [gpu], sizes)
        others = len(jobs) - 1
        prices.append(
            {each.share_percent: slowdown_with_partners(each.slowdown_under_contention, others) for each in priced}
        )

    parts = max_min_percents([{part: price.value for part, price in each.items()} for each in prices])
    throughputs = tuple(inverse(each[part]) for each, part in zip(prices, parts, strict=True))
    total = Interval(
        value=sum(each.value for each in throughputs),
        low=sum(each.low for each in throughputs),
        high=sum(each.high for each in throughputs),
    )

    return replace(
        together,
        normalised_throughput=throughputs,
        mps_thread_percent=parts,
        throughput_sum=total,
        recommended=together.fits and total.value >= WORTHWHILE_SUM,
    )


def allowed_percents(jobs: int) -> tuple[int, ...]:
    """Return the parts that each of so many jobs may have: every other job has `STEP_PERCENT` at least."""
    return tuple(range(STEP_PERCENT, WHOLE_PERCENT - STEP_PERCENT * (jobs - 1) + 1, STEP_PERCENT))


def max_min_percents(slowdowns: Sequence[Mapping[int, float]]) -> tuple[int, ...]:
    """Return each job's percentage of the threads, at most 100 together: the job that is slowed most is slowed least.

    Args:
        slowdowns: For each job, its step time on a part of the GPU against that on the whole, by percentage.

    Raises:
        RequestError: There are more jobs than parts.

    Source:
        Max-min fairness; KACE (Han et al., SoCC 2024) names this division as what remains to be done.
    """
    if len(slowdowns) * STEP_PERCENT > WHOLE_PERCENT:
        most = WHOLE_PERCENT // STEP_PERCENT
        message = f"Jobs on one GPU must be at most {most}; got {len(slowdowns)}. Name fewer."
        raise RequestError(message)

    # The lowest limit at which all jobs together still fit; each has the smallest part within it.
    parts: list[int] = []
    for limit in sorted({slowdown for each in slowdowns for slowdown in each.values()}, reverse=True):
        smallest = [min((part for part, cost in each.items() if cost <= limit), default=None) for each in slowdowns]
        enough = [part for part in smallest if part is not None]
        if len(enough) < len(slowdowns) or sum(enough) > WHOLE_PERCENT:
            break
        parts = enough

    # The jobs that are slowed most have the rest, as far as it helps them.
    for job in sorted(range(len(parts)), key=lambda number: -slowdowns[number][parts[number]]):
        most = parts[job] + WHOLE_PERCENT - sum(parts)
        within = ((slowdown, part) for part, slowdown in slowdowns[job].items() if parts[job] <= part <= most)
        _, parts[job] = min(within)
    return tuple(parts)


def _show(jobs: Sequence[Job], needs: Sequence[GpuNeed], colocation: Colocation) -> None:
    """Print what each job keeps of its throughput, and whether sharing is worth it."""
    figures = zip(
        colocation.normalised_throughput, colocation.mps_thread_percent, colocation.memory_cap_bytes, strict=True
    )
    rows = []
    for job, need, (throughput, percent, cap_bytes) in zip(jobs, needs, figures, strict=True):
        run = job.request.workload
        precision = [run.precision] if run.precision != Workload().precision else []
        manner = [run.mode, f"batch {run.batch_size}", *precision, *documents.manner_words(run)]
        rows.append(
            [
                ", ".join([job.request.model, *manner]),
                f"{tables.number_text(need.throughput_samples_per_s.value)} samples/s",
                tables.share_text(throughput),
                f"{percent} %",
                gib(cap_bytes),
            ]
        )

    tables.show_title(f"{len(jobs)} jobs on one {colocation.gpu}")
    tables.show("")
    tables.show_rows(COLUMNS, rows)
    work = tables.interval_text(colocation.throughput_sum, "x")
    tables.show(
        "",
        f"Together they do {work} the work of one after the other.",
        "Their memory fits." if colocation.fits else "Their memory does not fit on one GPU.",
        f"Sharing is {'' if colocation.recommended else 'not '}recommended.",
    )
