"""`gpusage predict`: what each model needs on each GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gpusage.cli import documents, figures, tables
from gpusage.cli.predicting import batches, money, need_cells, network, serve_options
from gpusage.cli.predicting.batches import Prediction
from gpusage.decisions.advisor import advisor
from gpusage.devices.shares import share_of
from gpusage.policies.candidates import limits_threads, why_unlimited
from gpusage.predictors.intervals import scaled
from gpusage.predictors.parallel.links import GPUS_PER_HOST
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Gpu, GpuNeed, ModelGraph, Price, Workload
from gpusage_hooks.units import WHOLE_PERCENT

if TYPE_CHECKING:
    from gpusage.predictors.explanation import Explanation

SCHEMA = "gpusage.predict/1"
LEGEND = (
    "In parentheses: the ends between which 9 of 10 runs should lie; 99 of 100 take less memory than its high end. "
    "'*': outside what the predictors were fitted on."
)
COLUMNS, SHARE_COLUMNS = need_cells.COLUMNS, need_cells.SHARE_COLUMNS
TOKEN_COLUMN = tables.Column("tokens/s")
BATCH_COLUMN = tables.Column("batch")


class Response(NamedTuple):
    """A prediction, where its time and memory go, and what it costs."""

    prediction: Prediction
    explanations: Sequence[Explanation]
    bill: money.Bill


def predict(
    context: click.Context,
    /,
    models: tuple[str, ...],
    gpu_names: tuple[str, ...],
    output: Path | None,
    *,
    explains: bool,
    as_json: bool,
    **run: Any,  # options
) -> None:
    """Predict what each MODEL needs on each GPU: time, memory, utilization."""
    serve_options.check(run)
    if run["serves"]:
        from gpusage.cli.predicting import serve  # few predictions need it, an explanation, or a page

        if explains or output is not None:
            message = "Option --serve must stand without --explain and -o; got both. Remove one of them."
            raise click.UsageError(message)
        serve.serve(models, gpu_names, run, as_json=as_json)
        return
    percents = run["shares"]
    groups = _predictions(models, gpu_names, percents, run)
    is_page = output is not None and output.suffix.lower() != ".json"
    answer = partial(_make_response, percents=percents, is_named=bool(gpu_names), explains=explains or is_page)
    answers = [[answer(one, run["deadline_s"]) for one in group] for group in groups]
    everything = [answer for group in answers for answer in group]
    if output is not None:
        from gpusage.cli.output_file import write_output

        write_output(
            output,
            _page(everything) if is_page else tables.json_text(_predictions_document(everything, explains=explains)),
        )
    if as_json:
        tables.print_json(_predictions_document(everything, explains=explains))
    else:
        for group in answers:
            _show(group, explains=explains)
        tables.show(LEGEND)
    needs = [need for group in groups for one in group for need in one.needs]
    context.exit(1 if run["must_fit"] and not all(need.fits for need in needs) else 0)


def _predictions(
    models: Sequence[str], names: Sequence[str], percents: Sequence[int], run: Mapping[str, Any]
) -> list[list[Prediction]]:
    """Return what each of *models* needs on the GPUs *names*, once for each batch."""
    groups = batches.read_requests(models, run)
    catalogue = advisor().catalogue
    gpus = [catalogue.find(name) for name in names] or list(catalogue.generations())
    if set(percents) - {WHOLE_PERCENT}:
        gpus = _divisible(gpus, are_named=bool(names))
    if any(request.workload.gpus > GPUS_PER_HOST for group in groups for request in group):
        gpus = network.of_site(gpus)
    return [batches.predictions(advisor(), group, gpus, percents, largest=run["wants_largest"]) for group in groups]


def _divisible(gpus: Sequence[Gpu], *, are_named: bool) -> list[Gpu]:
    """Return those of *gpus* whose threads MPS can divide; if they are named, all must be such."""
    for gpu in gpus if are_named else ():
        if why := why_unlimited(gpu):
            message = (
                f"Option --share must be of GPUs whose threads MPS can divide, which are Nvidia's since Volta; got "
                f"{gpu.name}, which is {why}. Leave out that GPU, or --share."
            )
            raise RequestError(message)
    return [gpu for gpu in gpus if limits_threads(gpu)]


def _make_response(
    prediction: Prediction, deadline_s: float | None, *, percents: Sequence[int], is_named: bool, explains: bool
) -> Response:
    """Return *prediction* with what it costs, and explained on each GPU that is asked for, or else the newest."""
    graph, run, needs, _ = prediction
    bill = money.bill_of(needs, run, deadline_s, advisor().catalogue)
    explanations = _explanations(graph, run, needs if is_named else needs[-1:], percents) if explains else ()
    return Response(prediction, explanations, bill)


def _explanations(
    graph: ModelGraph, run: Workload, needs: Sequence[GpuNeed], percents: Sequence[int]
) -> Sequence[Explanation]:
    """Explain each GPU of *needs* once, with what the shares *percents* cost each class of operators."""
    from gpusage.cli.predicting import known_words
    from gpusage.predictors.explanation import explanation_of

    gpus = [advisor().catalogue.find(name) for name in dict.fromkeys(need.gpu for need in needs)]
    if run.gpus > GPUS_PER_HOST:
        gpus = network.of_site(gpus)
    return [
        replace(explanation_of(graph, run, gpu, {size: share_of(gpu, size) for size in percents}), known=known)
        for gpu, known in zip(gpus, known_words.known_of(graph, run, gpus), strict=True)
    ]


def _page(answers: Sequence[Response]) -> str:
    from gpusage.cli.output_file import page_origin
    from gpusage.cli.predicting import explain_page

    models = [
        explain_page.Model(
            title=_title(one, answers),
            words=f"{describe_model(one.graph)}; {describe_workload(one.graph, one.workload)}",
            columns=[column.title for column in _columns([one])],
            rows=list(_rows([one])),
            notes=_notes([one]),
            explanations=explanations,
            needs=one.needs,
            prices=_prices(one.graph, one.workload, one.needs),
        )
        for one, explanations, _ in answers
    ]
    return explain_page.page(models, LEGEND, page_origin())


def _title(one: Prediction, answers: Sequence[Response]) -> str:
    """Return the model's name, and the batch where the model stands there with several."""
    same = [answer for answer in answers if answer.prediction.graph.name == one.graph.name]
    return f"{one.graph.name}, batch {one.workload.batch_size}" if len(same) > 1 else one.graph.name


def _prices(graph: ModelGraph, run: Workload, needs: Sequence[GpuNeed]) -> tuple[tuple[Price, ...], ...]:
    """Return what shares cost, by rising share, on each GPU of *needs* that can be shared."""
    from gpusage.reports.pages import curves

    gpus = [advisor().catalogue.find(name) for name in dict.fromkeys(need.gpu for need in needs)]
    shared = [gpu for gpu in gpus if limits_threads(gpu) and not gpu.parent_gpu]
    return advisor().price(graph, run, shared, curves.PERCENTS)


def _predictions_document(answers: Sequence[Response], *, explains: bool) -> dict[str, Any]:
    return {"schema": SCHEMA, "predictions": [_document(answer, explains=explains) for answer in answers]}


def _document(answer: Response, *, explains: bool) -> dict[str, Any]:
    graph, run, needs, first = answer.prediction
    new_tokens = run.generate.new_tokens if run.generate else None
    rows = [documents.need(need, first=first, steps=run.steps, new_tokens=new_tokens) for need in needs]
    by_gpu = _explanation_documents(answer.explanations if explains else ())
    rows = [{**need, "explanation": by_gpu[need["gpu"]]} if need["gpu"] in by_gpu else need for need in rows]
    document = {"model": documents.model(graph), "workload": documents.workload(graph, run), "needs": rows}
    return money.document(document, answer.bill)


def _explanation_documents(explanations: Sequence[Explanation]) -> dict[str, Any]:
    if not explanations:
        return {}
    from gpusage.cli.predicting import explain

    return {explanation.gpu: explain.document(explanation) for explanation in explanations}


def _show(answers: Sequence[Response], *, explains: bool) -> None:
    """Print one model: a table of all its batches, and what each costs."""
    _show_table([answer.prediction for answer in answers])
    for prediction, explanations, bill in answers:
        money.show(bill)
        if explains and len(answers) > 1:
            tables.show(f"Batch {prediction.workload.batch_size}.\n")
        if explains:
            _show_explanations(explanations)


def _show_explanations(explanations: Sequence[Explanation]) -> None:
    from gpusage.cli.predicting import explain

    for explanation in explanations:
        explain.show(explanation)


def _show_table(group: Sequence[Prediction]) -> None:
    graph, run = group[0].graph, group[0].workload
    tables.show_title(graph.name)
    tables.show(f"{describe_model(graph)}\n{describe_workload(graph, run, has_batch=len(group) == 1)}\n")
    tables.show_rows(_columns(group), list(_rows(group)))
    notes = _notes(group)
    tables.show("\n".join(["", *(f"- {note}" for note in notes), *([""] if notes else [])]))


def _columns(group: Sequence[Prediction]) -> Sequence[tables.Column]:
    gpu, *figures_of_it = COLUMNS
    batch = (BATCH_COLUMN,) if len(group) > 1 else ()
    share = SHARE_COLUMNS if _are_shared(group) else ()
    steps = (tables.Column(f"{group[0].workload.steps} steps"),) if group[0].workload.steps else ()
    if group[0].workload.generate:
        figures_of_it.insert(-1, TOKEN_COLUMN)
    return (gpu, *batch, *share, *figures_of_it, *steps)


def _are_shared(group: Sequence[Prediction]) -> bool:
    return need_cells.are_shared([need for one in group for need in one.needs])


def _notes(group: Sequence[Prediction]) -> list[str]:
    """Return what is to be known of the figures, each sentence once."""
    return need_cells.notes([need for one in group for need in one.needs])


def _rows(group: Sequence[Prediction]) -> Iterator[list[str]]:
    are_shared = _are_shared(group)
    for one in group:
        for need in one.needs:
            yield [
                need.gpu + ("" if need.familiar else " *"),
                *([str(one.workload.batch_size)] if len(group) > 1 else []),
                *(need_cells.share_cells(need) if are_shared else ()),
                *_figures(need, one.first, one.workload),
            ]


def _figures(need: GpuNeed, first: GpuNeed, run: Workload) -> Iterator[str]:
    yield from need_cells.figure_cells(need)
    if run.generate:
        yield figures.plain(scaled(need.throughput_samples_per_s, run.generate.new_tokens))
    yield figures.plain(documents.speedup(need, first), "x")
    if run.steps:
        yield figures.time(scaled(need.step_time_s, run.steps))


def describe_model(graph: ModelGraph) -> str:
    """Return what a model is, in one line."""
    document = documents.model(graph)
    words = [
        f"{graph.source}: {document['node_count']} nodes",
        f"{figures.count(graph.parameter_count)} parameters",
        f"{figures.count(document['flop'])}FLOP forward per sample",
    ]
    return ", ".join(words)


def describe_workload(graph: ModelGraph, run: Workload, *, has_batch: bool = True) -> str:
    """Return how a model is run, in one line; without the batch where that has a column."""
    document = documents.workload(graph, run)
    shapes = [f"{name}={'x'.join(map(str, sizes))}" for name, sizes in document["shape"].items() if sizes]
    batch = [f"batch {run.batch_size}"] if has_batch else []
    words = [run.mode, *batch, run.precision, *([run.optimizer] if run.mode == "train" else [])]
    return ", ".join([*words, *documents.manner_words(run), *shapes])
