"""`gpusage predict`: what each model needs on each GPU, for one batch, several, or the largest that fits.

What only some predictions need (explanations, a page, prices, servers) is imported where it is used: most users wait
for a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gpusage.cli import documents, options, tables
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.cli.predicting import need_table
from gpusage.cli.predicting.need_table import LEGEND, Prediction
from gpusage.decisions.advisor import advisor
from gpusage.decisions.prediction import largest_batches, request_with_model_settings
from gpusage.devices.shares import share_of
from gpusage.policies.candidates import why_unlimited
from gpusage.predictors.intervals import scaled
from gpusage.predictors.parallel.links import GPUS_PER_HOST
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Gpu, GpuNeed, ModelGraph, ModelRequest, Workload
from gpusage_hooks.units import WHOLE_PERCENT

if TYPE_CHECKING:
    from gpusage.cli.predicting.money import Bill
    from gpusage.predictors.explanation import Explanation

SCHEMA = "gpusage.predict/1"
# Options that mean nothing without one of others: its value, theirs, and what to add.
_NEEDED = (
    ("--rate", "requests_per_s", ("serves",), "--serve"),
    ("--batched-tokens", "batched_tokens", ("serves",), "--serve"),
    ("--fp8-cache", "has_narrow_cache", ("serves",), "--serve"),
    ("--p99", "first_token_s", ("requests_per_s",), "--rate"),
    ("--price", "price", ("serves", "steps"), "--serve or --steps"),
)


class Response(NamedTuple):
    """A prediction, where its time and memory go, and what it costs where the number of steps is known."""

    prediction: Prediction
    explanations: Sequence[Explanation]
    bill: Bill | None


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
    for option, name, others, words in _NEEDED:
        if run[name] and not any(run[other] for other in others):
            message = f"Option {option} needs {words}; got it alone. Add {words}."
            raise click.UsageError(message)
    if run["serves"]:
        from gpusage.cli.predicting import serve

        if explains or output is not None:
            message = "Option --serve must stand without --explain and -o; got both. Remove one of them."
            raise click.UsageError(message)
        serve.serve(models, gpu_names, run, as_json=as_json)
        return

    is_page = output is not None and output.suffix.lower() != ".json"
    named, explained = bool(gpu_names), explains or is_page
    responses: list[list[Response]] = []
    all_fit = True
    for group in _predictions(models, gpu_names, run):
        responses.append([])
        for prediction in group:
            responses[-1].append(_response(prediction, run, is_named=named, explains=explained))
            all_fit = all_fit and all(need.fits for need in prediction.needs)  # by the upper end of the memory

    everything = [*chain.from_iterable(responses)]
    document: dict[str, Any] = {"schema": SCHEMA, "predictions": []}
    if as_json or (output is not None and not is_page):
        document["predictions"] = [_document(answer, explains=explains) for answer in everything]
    if output is not None:
        from gpusage.cli.user_file import write_output

        write_output(output, _page(everything) if is_page else tables.json_text(document))
    if as_json:
        tables.print_json(document)
    else:
        for responses_of_model in responses:
            _show(responses_of_model, explains=explains)
        tables.show(LEGEND)
    context.exit(1 if run["must_fit"] and not all_fit else 0)


def _predictions(models: Sequence[str], names: Sequence[str], run: Mapping[str, Any]) -> list[list[Prediction]]:
    """Return the needs of each of *models* on the GPUs *names*, once for each batch."""
    sizes, percents = run["batches"], run["shares"]
    if run["wants_largest"] and sizes:
        message = "Option --max-batch looks for the batch itself; got --batch as well. Leave one of them out."
        raise click.UsageError(message)
    if run["steps"] and (run["wants_largest"] or len(sizes) > 1):
        message = "Option --steps counts steps of one batch; got several batches. Name one by --batch."
        raise click.UsageError(message)

    # A model with a batch of its own has the same request for each size, so each request counts once.
    groups = []
    for model in models:
        requests = (options.read_request(model, {**run, "batch": size}) for size in sizes or (None,))
        groups.append([*dict.fromkeys(requests)])

    catalogue = advisor().catalogue
    gpus = [*map(catalogue.find, names)] or list(catalogue.generations())
    if set(percents) - {WHOLE_PERCENT}:
        for gpu in gpus if names else ():
            if why := why_unlimited(gpu):
                message = (
                    f"Option --share must be of GPUs whose threads MPS can divide, which are Nvidia's since Volta; got "
                    f"{gpu.name}, which is {why}. Leave out that GPU, or --share."
                )
                raise RequestError(message)
        gpus = [gpu for gpu in gpus if not why_unlimited(gpu)]
    if any(request.workload.gpus > GPUS_PER_HOST for group in groups for request in group):
        from gpusage.cli.predicting.money import require_network

        require_network()
    return [_predictions_of_model(group, gpus, percents, largest=run["wants_largest"]) for group in groups]


def _predictions_of_model(
    requests: Sequence[ModelRequest], gpus: Sequence[Gpu], percents: Sequence[int], *, largest: bool
) -> list[Prediction]:
    """Return the needs of one model on *gpus*, once for each of *requests*, which differ in their batch.

    Args:
        requests: At least one.
        gpus: To predict for.
        percents: Shares of them; none for the whole ones.
        largest: Whether each GPU and each share has a prediction of its own, of the largest batch that fits there.

    Raises:
        GraphError: The model has a fixed batch, and another is asked for.
        RequestError: A step time is known of a GPU that is not among *gpus*.
    """
    graph = read_graph(advisor(), requests[0].model, dict(requests[0].workload.shape))
    run = request_with_model_settings(requests[0], graph).workload
    name = run.alone.gpu
    if name is not None and advisor().catalogue.find(name) not in gpus:
        message = f"Option --step-time must name a GPU that is predicted for; got {name!r}. Add --gpu {name}."
        raise RequestError(message)

    if not largest:
        predictions = []
        for request in requests:
            run = request_with_model_settings(request, graph).workload
            needs = _needs(graph, run, gpus, percents)
            predictions.append(Prediction(graph, run, needs, needs[0]))
        return predictions

    def needs_of_size(size: int) -> tuple[GpuNeed, ...]:
        return _needs(graph, replace(run, batch_size=size), gpus, percents)

    fitting = largest_batches(graph, lambda size: [need.fits for need in needs_of_size(size)])
    sizes = [max(size, 1) for size in fitting]  # where none fits, one sample shows by how much
    needs_of_each = [needs_of_size(size)[place] for place, size in enumerate(sizes)]

    # Steps of different batches are compared by samples per second: the first need's step is
    # stretched to as many samples as the other one has.
    return [
        Prediction(
            graph,
            replace(run, batch_size=size),
            (need,),
            replace(needs_of_each[0], step_time_s=scaled(needs_of_each[0].step_time_s, size / sizes[0])),
        )
        for size, need in zip(sizes, needs_of_each, strict=True)
    ]


def _needs(graph: ModelGraph, run: Workload, gpus: Sequence[Gpu], percents: Sequence[int]) -> tuple[GpuNeed, ...]:
    """Return the needs on *gpus*, or on each share of them."""
    return advisor().predict_shares(graph, run, gpus, percents) if percents else advisor().predict(graph, run, gpus)


def _response(prediction: Prediction, run: Mapping[str, Any], *, is_named: bool, explains: bool) -> Response:
    """Return *prediction* with what it costs, and explained on each GPU that is asked for, or else the newest."""
    graph, workload, needs, _ = prediction
    bill = None
    if workload.steps is not None or run["deadline_s"] is not None:
        from gpusage.cli.predicting import money

        bill = money.bill_of(needs, workload, run["deadline_s"], advisor().catalogue, run["price"])
    if not explains:
        return Response(prediction, (), bill)

    from gpusage.cli.predicting import explain
    from gpusage.predictors.explanation import explanation_of
    from gpusage.predictors.known import of_one_process

    # A GPU has one need for each share, and one explanation.
    names = dict.fromkeys(need.gpu for need in (needs if is_named else needs[-1:]))
    gpus = [advisor().catalogue.find(name) for name in names]
    known = [of_one_process(each, workload.processes) for each in explain.observed_figures(graph, workload, gpus)]
    explanations = [
        replace(
            explanation_of(graph, workload, gpu, {size: share_of(gpu, size) for size in run["shares"]}), known=figures
        )
        for gpu, figures in zip(gpus, known, strict=True)
    ]
    return Response(prediction, explanations, bill)


def _page(answers: Sequence[Response]) -> str:
    """Return the HTML page of all predictions."""
    from gpusage.cli.predicting import explain_page
    from gpusage.cli.user_file import page_origin
    from gpusage.reports.pages import curves

    # Two batches of one model need different titles.
    names = [answer.prediction.graph.name for answer in answers]
    models = []
    for prediction, explanations, _ in answers:
        graph, run, needs, _ = prediction
        columns, rows, notes = need_table.table([prediction])
        gpus = [advisor().catalogue.find(name) for name in dict.fromkeys(need.gpu for need in needs)]
        shared = [gpu for gpu in gpus if not why_unlimited(gpu) and not gpu.parent_gpu]
        models.append(
            explain_page.Model(
                title=f"{graph.name}, batch {run.batch_size}" if names.count(graph.name) > 1 else graph.name,
                words=f"{need_table.describe_model(graph)}; {need_table.describe_workload(graph, run)}",
                columns=[column.title for column in columns],
                rows=rows,
                notes=notes,
                explanations=explanations,
                needs=needs,
                prices=advisor().price(graph, run, shared, curves.PERCENTS),
            )
        )
    return explain_page.page(models, LEGEND, page_origin())


def _document(answer: Response, *, explains: bool) -> dict[str, Any]:
    """Return one prediction as JSON."""
    graph, run, needs, first = answer.prediction
    new_tokens = run.generate.new_tokens if run.generate else None
    rows = [documents.need(need, first=first, steps=run.steps, new_tokens=new_tokens) for need in needs]
    rows = [{**row, "fit": need_table.fit_word(need)} for row, need in zip(rows, needs, strict=True)]
    if explains:
        from gpusage.cli.predicting import explain

        by_gpu = {explanation.gpu: explain.document(explanation) for explanation in answer.explanations}
        rows = [{**need, "explanation": by_gpu[need["gpu"]]} if need["gpu"] in by_gpu else need for need in rows]
    document = {"model": documents.model(graph), "workload": documents.workload(graph, run), "needs": rows}
    return answer.bill.add_to(document) if answer.bill else document


def _show(answers: Sequence[Response], *, explains: bool) -> None:
    """Print one model: a table of all its batches, what each costs, and where its time and memory go."""
    need_table.show([answer.prediction for answer in answers])
    for prediction, explanations, bill in answers:
        if bill:
            bill.show()
        if explains and len(answers) > 1:
            tables.show(f"Batch {prediction.workload.batch_size}.\n")
        if explains:
            from gpusage.cli.predicting import explain

            for explanation in explanations:
                explain.show(explanation)
