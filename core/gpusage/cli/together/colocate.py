"""`gpusage colocate`: what jobs on one GPU do to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gpusage.api import advisor
from gpusage.cli import documents, figures, options, tables
from gpusage.cli.together import partners
from gpusage.own_settings import settled
from gpusage.policies import partition
from gpusage.policies.place import why_unlimited
from gpusage.predictors.beside import beside
from gpusage.predictors.colocation import WORTHWHILE_SUM
from gpusage.predictors.learned.intervals import inverse
from gpusage_hooks.types import Colocation, GpuNeed, Interval, JobState, ModelRequest
from gpusage_hooks.units import gib

SCHEMA = "gpusage.colocate/1"
MINIMUM_JOBS = 2
COLUMNS = (
    tables.Column("job", is_left=True),
    tables.Column("alone"),
    tables.Column("beside the others"),
    tables.Column("MPS threads"),
    tables.Column("memory cap"),
)


def colocate(
    context: click.Context,
    /,
    models: tuple[str, ...],
    gpu: str,
    candidates: Path | None,
    *,
    is_fair: bool,
    as_json: bool,
    **run: Any,  # noqa: ANN401 - options
) -> None:
    """Predict the throughput of each MODEL beside the others on one GPU under MPS."""
    state: JobState | None = run.pop("state")  # of --running and --queue
    source = candidates or state
    if source is not None:
        _require_one(context, candidates, state, is_fair=is_fair)
        context.exit(0 if partners.rank(context, models, source, gpu, run, as_json=as_json) else 1)
    if len(models) < MINIMUM_JOBS:
        message = f"Models must be at least {MINIMUM_JOBS}, they share one GPU; got {len(models)}. Name another one."
        raise click.UsageError(message, context)
    if is_fair:
        _require_limits(context, gpu)
    requests = options.read_requests(models, run)
    needs, colocation = _colocation(requests, gpu)
    if is_fair:
        colocation = _fair(requests, colocation)
    names = [request.model for request in requests]
    if as_json:
        tables.print_json({"schema": SCHEMA, **documents.colocation(names, colocation)})
    else:
        _show(requests, needs, colocation)
    context.exit(0 if colocation.recommended else 1)


def _require_one(context: click.Context, candidates: Path | None, state: JobState | None, *, is_fair: bool) -> None:
    ranking = "--among" if candidates is not None else "--running" if state == "running" else "--queue"
    if is_fair or (candidates is not None and state is not None):
        other = "--fair" if is_fair else "--running or --queue"
        message = f"Options {other} and {ranking} must not be given together; got both. Leave one out."
        raise click.UsageError(message, context)


def _require_limits(context: click.Context, name: str) -> None:
    why = why_unlimited(advisor().catalogue.find(name))
    if why:
        message = (
            f"Option --fair must have a GPU on which MPS limits a job's threads; got '{name}', which is {why}."
            " Leave --fair out."
        )
        raise click.UsageError(message, context)


def _colocation(requests: Sequence[ModelRequest], name: str) -> tuple[list[GpuNeed], Colocation]:
    """Return what each job needs alone, and what all do to each other."""
    gpu = advisor().catalogue.find(name)
    needs = []
    for request in requests:
        graph = advisor().read(request.model, dict(request.workload.shape))
        needs.append(advisor().predict(graph, settled(request.workload, request.named, graph), [gpu])[0])
    return needs, advisor().colocate(needs, gpu)


def _fair(requests: Sequence[ModelRequest], together: Colocation) -> Colocation:
    """Return the same jobs, each limited to its part of the threads by max-min fairness."""
    gpu, sizes = advisor().catalogue.find(together.gpu), partition.percents(len(requests))
    prices = []
    for request in requests:
        graph = advisor().read(request.model, dict(request.workload.shape))
        (priced,) = advisor().price(graph, settled(request.workload, request.named, graph), [gpu], sizes)
        prices.append({price.share_percent: beside(price.slowdown, len(requests) - 1) for price in priced})
    parts = partition.max_min([{part: price.value for part, price in each.items()} for each in prices])
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


def _show(requests: Sequence[ModelRequest], needs: Sequence[GpuNeed], colocation: Colocation) -> None:
    tables.show_title(f"{len(requests)} jobs on one {colocation.gpu}")
    tables.show("")
    tables.show_rows(
        COLUMNS,
        [
            [
                f"{request.model}, {request.workload.mode}, batch {request.workload.batch_size}",
                f"{figures.number(need.throughput_samples_per_s.value)} samples/s",
                figures.share(throughput),
                f"{percent} %",
                gib(cap_bytes),
            ]
            for request, need, throughput, percent, cap_bytes in zip(
                requests,
                needs,
                colocation.normalised_throughput,
                colocation.mps_thread_percent,
                colocation.memory_cap_bytes,
                strict=True,
            )
        ],
    )
    tables.show("", *_verdict(colocation))


def _verdict(colocation: Colocation) -> list[str]:
    return [
        f"Together they do {_times(colocation.throughput_sum)} the work of one after the other.",
        "Their memory fits." if colocation.fits else "Their memory does not fit on one GPU.",
        f"Sharing is {'' if colocation.recommended else 'not '}recommended.",
    ]


def _times(figure: Interval) -> str:
    return figures.plain(figure, "x")
