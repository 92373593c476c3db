"""`gpusage card`: the compact description of a model that travels with a job."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gpusage.cli import documents, figures, options, tables
from gpusage.cli.cards.graph_cache import read_graph
from gpusage.decisions.advisor import advisor
from gpusage.graphs.card.text import encode, write_file
from gpusage.graphs.reader import CARD_SUFFIX
from gpusage_hooks.types import ModelGraph

SCHEMA = "gpusage.card/1"
COMMONEST = 5
COLUMNS = (
    tables.Column("model", is_left=True),
    tables.Column("nodes"),
    tables.Column("kinds", is_optional=True),
    tables.Column("parameters"),
    tables.Column("card"),
    tables.Column("commonest operators", is_left=True, is_optional=True),
)


def card(
    context: click.Context, models: tuple[str, ...], shape: tuple[str, ...], output: Path | None, *, as_json: bool
) -> None:
    """Describe each MODEL in at most 4096 characters, without its weights."""
    if output is not None and not _is_folder(output):
        _check_file(context, output, len(models))
    graphs = [_read(word, shape) for word in models]
    cards = [_document(graph) for graph in graphs]
    if output is not None:
        _save(graphs, output)
    if as_json:
        tables.print_json({"schema": SCHEMA, "cards": cards})
    else:
        tables.show_rows(COLUMNS, [_cells(card) for card in cards])


def _check_file(context: click.Context, output: Path, count: int) -> None:
    if count > 1:
        message = f"Output {str(output)!r} must be a folder where there are several models; got no folder. Make it."
        raise click.UsageError(message, context)
    if not output.name.endswith(CARD_SUFFIX):
        message = f"Output {output.name!r} must end with {CARD_SUFFIX!r}, by which a card is known. Rename it."
        raise click.UsageError(message, context)


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - is_dir() raises where a folder may not be searched


def _read(word: str, shape: Sequence[str]) -> ModelGraph:
    request = options.read_requests([word], {"shape": shape})[0]
    return read_graph(advisor(), request.model, dict(request.workload.shape))


def _document(graph: ModelGraph) -> dict[str, Any]:
    text = encode(graph)
    return {"model": documents.model(graph), "summary": summarize(graph), "byte_count": len(text), "card": text}


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


def _save(graphs: Sequence[ModelGraph], output: Path) -> None:
    for graph in graphs:
        write_file(graph, output / f"{graph.name}{CARD_SUFFIX}" if _is_folder(output) else output)


def _cells(card: Mapping[str, Any]) -> list[str]:
    summary = card["summary"]
    commonest = list(summary["op_types"].items())[:COMMONEST]
    return [
        summary["name"],
        str(summary["node_count"]),
        str(summary["kind_count"]),
        figures.count(summary["parameter_count"]),
        f"{card['byte_count']} B",
        ", ".join(f"{count} {op_type}" for op_type, count in commonest),
    ]
