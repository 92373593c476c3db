"""`gpusage predict`: what each model needs on each GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from gpusage.api import advisor
from gpusage.cli import documents, explain, explain_page, figures, money, options, shares, tables
from gpusage.devices.shares import WHOLE_PERCENT, share_of
from gpusage.learning.identity import training_settings
from gpusage.pages import curves
from gpusage.policies.place import LIMITING
from gpusage.predictors.explanation import Explanation, explanation_of
from gpusage_hooks.types import GpuNeed, ModelGraph, Price, Workload

SCHEMA = "gpusage.predict/1"
LEGEND = (
    "In parentheses: the ends between which 9 of 10 runs should lie. '*': outside what the predictors were fitted on."
)
COLUMNS = (
    tables.Column("GPU", is_left=True),
    tables.Column("step time"),
    tables.Column("memory"),
    tables.Column("fits"),
    tables.Column("GPU busy", is_optional=True),
    tables.Column("SM activity"),
    tables.Column("DRAM activity", is_optional=True),
    tables.Column("samples/s"),
    tables.Column("speedup"),
)
SHARE_COLUMNS = (tables.Column("share"), tables.Column("slowdown"))

Prediction = tuple[ModelGraph, Workload, tuple[GpuNeed, ...]]


def predict(
    models: tuple[str, ...],
    gpus: tuple[str, ...],
    output: Path | None,
    deadline_s: float | None,
    *,
    explains: bool,
    as_json: bool,
    **run: Any,  # noqa: ANN401 - options
) -> None:
    """Predict what each MODEL needs on each GPU: time, memory, utilization."""
    asked = shares.read_shares(run)
    predictions = _predictions(options.read_requests(models, run), gpus, asked)
    bills = [money.bill_of(needs, run.steps, deadline_s, advisor().catalogue) for _, run, needs in predictions]
    explanations = [
        _explanations(graph, run, needs if gpus else needs[-1:], asked) if explains or output else ()
        for graph, run, needs in predictions
    ]
    if output is not None:
        _write_page(output, predictions, explanations, asked)
    pairs = list(zip(predictions, explanations if explains else [()] * len(predictions), strict=True))
    if as_json:
        entries = [
            money.document(_document(*prediction, explained), bill)
            for (prediction, explained), bill in zip(pairs, bills, strict=True)
        ]
        tables.print_json({"schema": SCHEMA, "predictions": entries})
        return
    for (prediction, explained), bill in zip(pairs, bills, strict=True):
        _show(*prediction)
        money.show(bill)
        _show_explanations(explained)
    tables.show(LEGEND)


def _predictions(requests: Sequence[Any], names: Sequence[str], asked: shares.Shares) -> list[Prediction]:
    """Return graph, workload and needs of each request."""
    catalogue = advisor().catalogue
    gpus = [catalogue.find(name) for name in names] or list(catalogue.generations())
    asked.check(gpus, catalogue)
    predictions = []
    for request in requests:
        graph = advisor().read(request.model, dict(request.workload.shape))
        predictions.append((graph, request.workload, asked.needs(advisor(), graph, request.workload, gpus)))
    return predictions


def _explanations(
    graph: ModelGraph, run: Workload, needs: Sequence[GpuNeed], asked: shares.Shares
) -> Sequence[Explanation]:
    """Explain each GPU of *needs* once, with what the shares *asked* for cost each class of operators."""
    gpus = [advisor().catalogue.find(name) for name in dict.fromkeys(need.gpu for need in needs)]
    return [explanation_of(graph, run, gpu, {size: share_of(gpu, size) for size in asked.percents}) for gpu in gpus]


def _show_explanations(explanations: Sequence[Explanation]) -> None:
    for explanation in explanations:
        explain.show(explanation)


def _write_page(
    path: Path,
    predictions: Sequence[Prediction],
    explanations: Sequence[Sequence[Explanation]],
    asked: shares.Shares,
) -> None:
    models = [
        explain_page.Model(
            title=graph.name,
            words=f"{describe_model(graph)}; {describe_workload(graph, run)}",
            columns=[column.title for column in _columns(needs, run)],
            rows=[list(_cells(need, needs, run.steps)) for need in needs],
            notes=_notes(needs),
            explanations=explained,
            prices=_prices(graph, run, needs, asked),
        )
        for (graph, run, needs), explained in zip(predictions, explanations, strict=True)
    ]
    try:
        path.write_text(explain_page.page(models, LEGEND), encoding="utf-8")
    except OSError as error:
        message = f"Page {str(path)!r} must be writable; got: {error.strerror}. Choose another path."
        raise click.ClickException(message) from error


def _prices(
    graph: ModelGraph, run: Workload, needs: Sequence[GpuNeed], asked: shares.Shares
) -> tuple[tuple[Price, ...], ...]:
    """Return what shares cost, by rising share, on each GPU of *needs* that can be shared."""
    gpus = [advisor().catalogue.find(name) for name in dict.fromkeys(need.gpu for need in needs)]
    shared = [gpu for gpu in gpus if gpu.compute_capability >= LIMITING and not gpu.cut_from]
    return asked.prices(advisor(), graph, run, shared, curves.PERCENTS)


def _document(
    graph: ModelGraph, run: Workload, needs: Sequence[GpuNeed], explanations: Sequence[Explanation]
) -> dict[str, Any]:
    rows = [documents.need(need, first=needs[0], steps=run.steps) for need in needs]
    by_gpu = {explained.gpu: explain.document(explained) for explained in explanations}
    rows = [{**need, "explanation": by_gpu[need["gpu"]]} if need["gpu"] in by_gpu else need for need in rows]
    return {"model": documents.model(graph), "workload": documents.workload(graph, run), "needs": rows}


def _show(graph: ModelGraph, run: Workload, needs: Sequence[GpuNeed]) -> None:
    tables.show_title(graph.name)
    tables.show(f"{describe_model(graph)}\n{describe_workload(graph, run)}\n")
    tables.show_rows(_columns(needs, run), [list(_cells(need, needs, run.steps)) for need in needs])
    notes = _notes(needs)
    tables.show("\n".join(["", *(f"- {note}" for note in notes), *([""] if notes else [])]))


def _columns(needs: Sequence[GpuNeed], run: Workload) -> Sequence[tables.Column]:
    gpu, *figures_of_it = COLUMNS
    share = SHARE_COLUMNS if _are_shared(needs) else ()
    steps = (tables.Column(f"{run.steps} steps"),) if run.steps else ()
    return (gpu, *share, *figures_of_it, *steps)


def _are_shared(needs: Sequence[GpuNeed]) -> bool:
    return any(need.share_percent != WHOLE_PERCENT or need.slowdown.high > 1.0 for need in needs)


def _notes(needs: Sequence[GpuNeed]) -> list[str]:
    """Return what is to be known of the figures, each sentence once."""
    return list(dict.fromkeys(note for need in needs for note in need.notes))


def _cells(need: GpuNeed, needs: Sequence[GpuNeed], steps: int | None) -> Iterator[str]:
    yield need.gpu + ("" if need.familiar else " *")
    if _are_shared(needs):
        yield f"{need.share_percent} %"
        yield figures.plain(need.slowdown, "x")
    yield figures.time(need.step_time_s)
    yield figures.memory(need.memory_bytes)
    yield "yes" if need.fits else "no"
    yield figures.share(need.gpu_utilization)
    yield figures.share(need.sm_activity)
    yield figures.share(need.dram_activity)
    yield figures.plain(need.throughput_samples_per_s)
    yield figures.plain(documents.speedup(need, needs[0]), "x")
    if steps:
        yield figures.time(documents.scaled(need.step_time_s, steps))


def describe_model(graph: ModelGraph) -> str:
    """Return what a model is, in one line."""
    document = documents.model(graph)
    words = [
        f"{graph.source}: {document['node_count']} nodes",
        f"{figures.count(graph.parameter_count)} parameters",
        f"{figures.count(document['flop'])}FLOP forward a sample",
    ]
    return ", ".join(words)


def describe_workload(graph: ModelGraph, run: Workload) -> str:
    """Return how a model is run, in one line."""
    document = documents.workload(graph, run)
    shapes = [f"{name}={'x'.join(map(str, sizes))}" for name, sizes in document["shape"].items() if sizes]
    words = [run.mode, f"batch {run.batch_size}", run.precision, *([run.optimizer] if run.mode == "train" else [])]
    training = [f"{key} {value}" for key, value in training_settings(run).items()]
    return ", ".join([*words, *training, *shapes])
