"""`gpusage card`: the compact description of a model that travels with a job."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import click

from gpusage.cli import documents, options, tables
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.decisions.advisor import advisor
from gpusage.graphs.card.text import encode, write_file
from gpusage.graphs.reader import CARD_SUFFIX
from gpusage_hooks.types import ModelGraph

SCHEMA = "gpusage.card/1"
COMMONEST = 5
OPERATORS = "commonest operators"
COLUMNS = tables.columns(
    "model", "nodes", "kinds", "parameters", "card", OPERATORS, left=(OPERATORS,), optional=("kinds", OPERATORS)
)


def card(
    context: click.Context, models: tuple[str, ...], shape: tuple[str, ...], output: Path | None, *, as_json: bool
) -> None:
    """Describe each MODEL in at most 4096 characters, without its weights."""
    is_folder = output is not None and os.path.isdir(output)  # noqa: PTH112 - pathlib's raises below a closed folder
    if output is not None and not is_folder:
        if len(models) > 1:
            message = f"Output {str(output)!r} must be a folder where there are several models; got no folder. Make it."
            raise click.UsageError(message, context)
        if not output.name.endswith(CARD_SUFFIX):
            message = f"Output {output.name!r} must end with {CARD_SUFFIX!r}, by which a card is known. Rename it."
            raise click.UsageError(message, context)

    # All models are read and encoded before the first card is written.
    graphs = []
    for word in models:
        request = options.read_request(word, {"shape": shape})
        graphs.append(read_graph(advisor(), request.model, dict(request.workload.shape)))
    texts = [encode(graph) for graph in graphs]
    if output is not None:
        for graph in graphs:
            write_file(graph, output / f"{graph.name}{CARD_SUFFIX}" if is_folder else output)

    if as_json:
        cards = [
            {"model": documents.model(graph), "summary": summarize(graph), "byte_count": len(text), "card": text}
            for graph, text in zip(graphs, texts, strict=True)
        ]
        tables.print_json({"schema": SCHEMA, "cards": cards})
    else:
        rows = []
        for graph, text in zip(graphs, texts, strict=True):
            commonest = Counter(node.op_type for node in graph.nodes).most_common(COMMONEST)
            operators = ", ".join(f"{count} {op_type}" for op_type, count in commonest)
            counts = (str(len(graph.nodes)), str(len(set(graph.nodes))), tables.count_text(graph.parameter_count))
            rows.append([graph.name, *counts, f"{len(text)} B", operators])
        tables.show_rows(COLUMNS, rows)


def summarize(graph: ModelGraph) -> dict[str, Any]:
    """Return a summary of *graph*, ready for JSON."""
    return {
        "name": graph.name,
        "source": graph.source,
        "node_count": len(graph.nodes),
        "kind_count": len(set(graph.nodes)),
        "parameter_count": graph.parameter_count,
        "inputs": {name: list(shape) for name, shape in graph.inputs},
        "fixed_batch_size": graph.fixed_batch_size,
        "op_types": dict(Counter(node.op_type for node in graph.nodes).most_common()),
        "unknown_op_types": dict(graph.unknown_op_types),
        "notes": list(graph.notes),
    }
