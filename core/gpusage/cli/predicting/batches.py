"""Which batches and shares `gpusage predict` predicts: one batch, several, or the largest that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from gpusage.cli import options
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.decisions.batch_search import largest_batches
from gpusage.decisions.model_defaults import settled_request
from gpusage.predictors.intervals import scaled
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Gpu, GpuNeed, ModelGraph, ModelRequest, Workload

if TYPE_CHECKING:
    from gpusage.decisions.advisor import Advisor

Function = TypeVar("Function", bound=Callable[..., Any])
_SIZE = click.IntRange(1, 10**9)


class Prediction(NamedTuple):
    """What one batch of a model needs.

    Attributes:
        needs: On each GPU, or on each share of each.
        first: The need that speed-ups are against.
    """

    graph: ModelGraph
    workload: Workload
    needs: tuple[GpuNeed, ...]
    first: GpuNeed


def _sizes(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    """Return batch sizes joined by commas, each once, in their order."""
    words = text.split(",") if text is not None else ()
    sizes: list[int] = [_SIZE(word.strip(), parameter, context) for word in words]
    return tuple(dict.fromkeys(sizes))


_BATCH_OPTIONS = (
    click.option(
        "--batch",
        "batches",
        callback=_sizes,
        metavar="N[,N...]",
        help="Samples per step on one GPU; several, joined by commas, are predicted one by one.  [default: 1]",
    ),
    click.option(
        "--max-batch",
        "wants_largest",
        is_flag=True,
        help="Predict the largest batch that fits on each GPU, by the upper end of the memory.",
    ),
)
share_option = click.option(
    "--share",
    "shares",
    type=click.IntRange(1, 100),
    metavar="PERCENT",
    multiple=True,
    help="Predict for this MPS share of each GPU, and what the share costs; may be repeated.",
)


def batch_options(function: Function) -> Function:
    """Add ``--batch`` and ``--max-batch``; a command hands them on to `read_requests` as a mapping."""
    for option in reversed(_BATCH_OPTIONS):
        function = option(function)
    return function


def read_requests(models: Sequence[str], run: Mapping[str, Any]) -> list[list[ModelRequest]]:
    """Return what each word of *models* asks for, once for each batch; a word with its own batch has that alone.

    Args:
        models: The words.
        run: The command's options, ``batches`` and ``wants_largest`` among them.

    Raises:
        RequestError: A word is malformed.
        UsageError: The options exclude each other.
    """
    sizes = run["batches"]
    if run["wants_largest"] and sizes:
        message = "Option --max-batch looks for the batch itself; got --batch as well. Leave one of them out."
        raise click.UsageError(message)
    if run["steps"] and (run["wants_largest"] or len(sizes) > 1):
        message = "Option --steps counts steps of one batch; got several batches. Name one by --batch."
        raise click.UsageError(message)
    of_each = [{**run, "batch": size} for size in sizes or (None,)]
    return [list(dict.fromkeys(options.read_requests([model], one)[0] for one in of_each)) for model in models]


def predictions(
    advisor: Advisor, requests: Sequence[ModelRequest], gpus: Sequence[Gpu], percents: Sequence[int], *, largest: bool
) -> list[Prediction]:
    """Return what one model needs on *gpus*, once for each of *requests*, which differ in their batch.

    Args:
        advisor: That predicts.
        requests: At least one.
        gpus: To predict for.
        percents: Shares of them; none for the whole ones.
        largest: Whether each GPU and each share has a prediction of its own, of the largest batch that fits there.

    Raises:
        GraphError: The model has a fixed batch, and another is asked for.
        RequestError: A step time is known of a GPU that is not among *gpus*.
    """
    graph = read_graph(advisor, requests[0].model, dict(requests[0].workload.shape))
    runs = [settled_request(request, graph).workload for request in requests]

    def needs_of(run: Workload) -> tuple[GpuNeed, ...]:
        return advisor.predict_shares(graph, run, gpus, percents) if percents else advisor.predict(graph, run, gpus)

    _require_predicted(runs[0].alone.gpu, gpus, advisor)
    if largest:
        return _largest(graph, runs[0], lambda size: needs_of(replace(runs[0], batch_size=size)))
    rows = [(run, needs_of(run)) for run in runs]
    return [Prediction(graph, run, needs, needs[0]) for run, needs in rows]


def _require_predicted(name: str | None, gpus: Sequence[Gpu], advisor: Advisor) -> None:
    """Refuse a step time of the GPU *name* if that is not among *gpus*."""
    if name is not None and advisor.catalogue.find(name) not in gpus:
        message = f"Option --step-time must name a GPU that is predicted for; got {name!r}. Add --gpu {name}."
        raise RequestError(message)


def _largest(graph: ModelGraph, run: Workload, needs_of: Callable[[int], tuple[GpuNeed, ...]]) -> list[Prediction]:
    """Return one prediction for each need: of the largest batch that fits, or of one sample where none does."""
    largest = largest_batches(graph, lambda size: [need.fits for need in needs_of(size)])
    sizes = [max(size, 1) for size in largest]
    rows = [(size, needs_of(size)[place]) for place, size in enumerate(sizes)]
    first_size, first = rows[0]
    return [
        Prediction(graph, replace(run, batch_size=size), (need,), _scaled(first, size / first_size))
        for size, need in rows
    ]


def _scaled(need: GpuNeed, factor: float) -> GpuNeed:
    """Return *need* with *factor* times the samples in a step, at the same samples a second."""
    return replace(need, step_time_s=scaled(need.step_time_s, factor))
