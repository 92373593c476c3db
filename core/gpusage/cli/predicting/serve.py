"""`gpusage predict --serve`: what each GPU serves of a language model, and how many GPUs a rate of requests takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from gpusage.cli import documents, options, tables
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.cli.predicting.money import prices_per_hour
from gpusage.decisions.advisor import advisor
from gpusage.decisions.prediction import request_with_model_settings
from gpusage.predictors.intervals import interval_around, scaled
from gpusage_hooks.errors import RequestError
from gpusage_hooks.job_keys import JOB_KEYS
from gpusage_hooks.types import Gpu, ModelGraph, Workload
from gpusage_hooks.units import HOUR_S, WHOLE_PERCENT

if TYPE_CHECKING:
    from gpusage_hooks.types import Engine

SCHEMA = "gpusage.serve/1"
MILLION = 1e6
# Options of one step, which is not what a server does.
_OF_STEPS = {
    "shares": "--share",
    "batches": "--batch",
    "wants_largest": "--max-batch",
    "steps": "--steps",
    "must_fit": "--fail-if-not-fits",
    "utilization": "--utilization",
    "step_time": "--step-time",
}
# Keys of a model's text for one step, or for one job on a cluster.
_KEYS_OF_JOBS = ("batch", *(key.name for key in JOB_KEYS.values() if key.affects == "decision"))
LEGEND = (
    "With as many answers side by side as keys and values fit into 90 % of the GPU's memory, batched continuously; "
    "9 of 10 published figures lie within 1.5 times of what the same rules predict. Longest: what fits alone; the "
    "model itself may end earlier."
)


def serve(models: Sequence[str], names: Sequence[str], run: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what each GPU of *names* serves of each of *models*; of each generation that can where there are none.

    Raises:
        RequestError: A model is to be served, and nobody said how long prompts and answers are, or its engine is not
            for a GPU.
    """
    for name, option in _OF_STEPS.items():
        if run.get(name):
            message = f"Option {option} must stand without --serve; got both. Remove one of them."
            raise RequestError(message)

    written = []
    for request in [options.read_request(model, run) for model in models]:
        for key in _KEYS_OF_JOBS:
            if key in request.named:
                message = (
                    f"Key {key!r} of model {request.model!r} must stand without --serve; got both. Remove one of them."
                )
                raise RequestError(message)

        graph = read_graph(advisor(), request.model, dict(request.workload.shape))
        workload = request_with_model_settings(request, graph).workload
        if workload.generate is None:
            message = (
                f"Option --serve of model {graph.name!r} must come with --generate; got none. Add --generate 512+128."
            )
            raise RequestError(message)
        # A server runs an engine; vllm is the usual one.
        workload = workload if "engine" in request.named else replace(workload, engine="vllm")
        rows = [_document(graph, workload, gpu, run) for gpu in _gpus(names, workload.engine)]
        if as_json:
            written.append(
                {"model": documents.model(graph), "workload": documents.workload(graph, workload), "gpus": rows}
            )
        else:
            _show(graph, workload, rows, run)

    if as_json:
        tables.print_json({"schema": SCHEMA, "models": written})


def _gpus(names: Sequence[str], engine: Engine) -> list[Gpu]:
    from gpusage.predictors.times.step_time import ENGINE_GPUS, runs_on  # numpy

    catalogue = advisor().catalogue
    if not names:
        return [gpu for gpu in catalogue.generations() if runs_on(engine, gpu)]
    gpus = [catalogue.find(name) for name in names]
    for gpu in gpus:
        if not runs_on(engine, gpu):
            message = (
                f"GPU of engine {engine} must be {ENGINE_GPUS[engine].words}; got {gpu.name}. "
                "Name another GPU, or add --engine eager."
            )
            raise RequestError(message)
    return gpus


def _document(graph: ModelGraph, workload: Workload, gpu: Gpu, run: Mapping[str, Any]) -> dict[str, Any]:
    from gpusage.decisions.serving import BLOCK_TOKENS, Server, fleet_of, serving_of  # numpy

    server = Server(graph, workload, gpu, run["batched_tokens"], run["has_narrow_cache"])
    serving, rate = serving_of(server), run["requests_per_s"]
    document: dict[str, Any] = {
        "gpu": serving.gpu,
        "answers": serving.answers,
        "kv_block_count": documents.interval(serving.blocks),
        "longest_tokens": documents.interval(scaled(serving.blocks, BLOCK_TOKENS)),
    }
    if serving.answers:  # a GPU that can serve no answer has no figures
        values = {
            "first_token_s": serving.first_token_s,
            "tokens_per_s_per_user": serving.user_tokens_per_s,
            "tokens_per_s": serving.tokens_per_s,
        }
        price_per_hour = prices_per_hour(advisor().catalogue, run["price"]).get(serving.gpu)
        if price_per_hour is not None:
            values["cost_per_million_tokens"] = price_per_hour / HOUR_S / serving.tokens_per_s * MILLION
        document |= {name: documents.interval(interval_around(value, serving.factor)) for name, value in values.items()}

    if rate is not None:
        limit_s = run["first_token_s"]
        fleet = fleet_of(server, rate, inf if limit_s is None else limit_s)
        document["gpu_count"] = fleet.gpu_count if fleet else None
        document["share_percent"] = fleet.share_percent if fleet else None
    return document


def _show(graph: ModelGraph, workload: Workload, rows: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> None:
    tables.show_title(graph.name)
    manner = ", ".join([workload.precision, *documents.manner_words(workload)])
    tables.show(f"{graph.source}, served in {manner}\n")
    names = ["answers", "KV blocks", "longest (tokens)", "first token", "tokens/s per user", "tokens/s per GPU"]
    # Columns that no row fills are left out.
    names += [
        *(["1M tokens cost"] if any("cost_per_million_tokens" in row for row in rows) else []),
        *(["GPUs"] if run["requests_per_s"] else []),
    ]
    columns = tables.columns("GPU", *names)
    tables.show_rows(columns, [_cells(row, len(columns), is_rated=run["requests_per_s"] is not None) for row in rows])

    too_small = [row["gpu"] for row in rows if not row["answers"]]
    if too_small:
        bits = "" if workload.precision == "int4" else ", fewer bits for each weight (--precision int4)"
        tables.show(
            f"\nNo answer fits beside the weights on {', '.join(too_small)}. Use a GPU with more memory{bits} or more "
            f"GPUs (--gpus {2 * workload.gpus})."
        )

    tables.show(f"\n{LEGEND}")


def _cells(row: Mapping[str, Any], width: int, *, is_rated: bool) -> list[str]:
    """Return the cells of one GPU, *width* of them; with a rate the last one is how many GPUs serve it."""
    counts = (row[name] for name in ("kv_block_count", "longest_tokens"))
    sizes = ("{value:.0f} ({low:.0f}-{high:.0f})".format(**count) if count["high"] else "0" for count in counts)
    cells = [row["gpu"], str(row["answers"]), *sizes]
    if "first_token_s" in row:
        cells.append(tables.seconds_text(row["first_token_s"]["value"]))
        cells += [tables.number_text(row[name]["value"]) for name in ("tokens_per_s_per_user", "tokens_per_s")]
    if "cost_per_million_tokens" in row:
        cells.append(tables.number_text(row["cost_per_million_tokens"]["value"]))
    cells += [""] * (width - len(cells) - is_rated)
    if not is_rated:
        return cells

    if row["gpu_count"] is None:
        return [*cells, "none will do"]
    is_whole = row["share_percent"] == WHOLE_PERCENT
    return [*cells, str(row["gpu_count"]) if is_whole else f"{row['share_percent']} % of one"]
