"""`gpusage colocate`: what jobs on one GPU do to each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gpusage.api import advisor
from gpusage.cli import documents, figures, options, partners, tables
from gpusage_hooks.types import Colocation, GpuNeed, Interval, ModelRequest
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
    as_json: bool,
    **run: Any,  # noqa: ANN401 - options
) -> None:
    """Predict the throughput of each MODEL beside the others on one GPU under MPS."""
    if candidates is not None:
        context.exit(0 if partners.rank(context, models, candidates, gpu, run, as_json=as_json) else 1)
    if len(models) < MINIMUM_JOBS:
        message = f"Models must be at least {MINIMUM_JOBS}, they share one GPU; got {len(models)}. Name another one."
        raise click.UsageError(message, context)
    requests = options.read_requests(models, run)
    needs, colocation = _colocation(requests, gpu)
    names = [request.model for request in requests]
    if as_json:
        tables.print_json({"schema": SCHEMA, **documents.colocation(names, colocation)})
    else:
        _show(requests, needs, colocation)
    context.exit(0 if colocation.recommended else 1)


def _colocation(requests: Sequence[ModelRequest], name: str) -> tuple[list[GpuNeed], Colocation]:
    """Return what each job needs alone, and what all do to each other."""
    gpu = advisor().catalogue.find(name)
    needs = []
    for request in requests:
        graph = advisor().read(request.model, dict(request.workload.shape))
        needs.append(advisor().predict(graph, request.workload, [gpu])[0])
    return needs, advisor().colocate(needs, gpu)


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
