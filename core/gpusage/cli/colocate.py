"""`gpusage colocate`: what jobs on one GPU do to each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from gpusage.cli import documents, options, pairs, partners, tables
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.decisions.advisor import advisor
from gpusage.decisions.prediction import request_with_model_settings
from gpusage_hooks.types import Colocation, GpuNeed, JobState, ModelGraph, ModelRequest, Workload
from gpusage_hooks.units import gib

SCHEMA = "gpusage.colocate/1"
MINIMUM_JOBS = 2
COLUMNS = tables.columns("job", "alone", "beside the others", "MPS threads", "memory cap")


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
    as_json: bool,
    **run: Any,  # options
) -> None:
    """Predict the throughput of each MODEL beside the others on one GPU under MPS."""
    is_running, is_waiting = run.pop("is_running"), run.pop("is_waiting")
    state: JobState | None = "running" if is_running else "waiting" if is_waiting else None
    set_options = {"among": candidates is not None, "running": is_running, "queue": is_waiting}
    names = [f"--{name}" for name, is_set in set_options.items() if is_set]
    if len(names) > 1:
        message = f"Options {names[0]} and {names[1]} must not be combined; got both. Leave one out."
        raise click.UsageError(message, context)
    row, pairs_file = advisor().catalogue.find(gpu), run.pop("pairs_file")
    if pairs_file is not None:
        context.with_resource(pairs.learning(pairs_file, row))
    source = candidates or state
    if source is not None:
        context.exit(0 if partners.rank(context, models, source, gpu, run, as_json=as_json) else 1)
    if len(models) < MINIMUM_JOBS:
        message = f"Models must be at least {MINIMUM_JOBS}, they share one GPU; got {len(models)}. Name another one."
        raise click.UsageError(message, context)

    jobs = []
    for request in [options.read_request(model, run) for model in models]:
        graph = read_graph(advisor(), request.model, dict(request.workload.shape))
        jobs.append(Job(request_with_model_settings(request, graph), graph))
    needs = [advisor().predict(job.graph, job.request.workload, [row])[0] for job in jobs]
    colocation = advisor().colocate(needs, row)
    if as_json:
        names = [job.request.model for job in jobs]
        tables.print_json({"schema": SCHEMA, **documents.colocation(names, colocation)})
    else:
        _show(jobs, needs, colocation)

    context.exit(0 if colocation.recommended else 1)


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
