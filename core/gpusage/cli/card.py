"""`gpusage card`: the compact description of a model that travels with a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gpusage.cli import documents, figures, options, tables
from gpusage_hooks.types import ModelGraph

EXAMPLE = """\b
Examples:
  gpusage card examples/models/resnet50.onnx
  gpusage card examples/models/resnet50.onnx -o resnet50.card.json
  gpusage card examples/models/unet.onnx --json
"""
SCHEMA = "gpusage.card/1"
SUFFIX = ".card.json"
COMMONEST = 5
COLUMNS = (
    tables.Column("model", is_left=True),
    tables.Column("nodes"),
    tables.Column("kinds", is_optional=True),
    tables.Column("parameters"),
    tables.Column("card"),
    tables.Column("commonest operators", is_left=True, is_optional=True),
)


@click.command(epilog=EXAMPLE, short_help="Describe models compactly, without their weights.")
@options.models_argument
@options.shape_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Save the readable form here, as NAME.card.json; a folder takes several.",
)
@options.json_option
@click.pass_context
def command(
    context: click.Context, models: tuple[str, ...], shape: tuple[str, ...], output: Path | None, *, as_json: bool
) -> None:
    """Describe each MODEL in at most 4096 characters, without its weights.

    From a card every prediction can be made that can be made from the file. With --json the card is in `card`.
    """
    if output is not None and not output.is_dir():
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
    if not output.name.endswith(SUFFIX):
        message = f"Output {output.name!r} must end with {SUFFIX!r}, by which a card is known. Rename it."
        raise click.UsageError(message, context)


def _read(word: str, shape: Sequence[str]) -> ModelGraph:
    from gpusage.api import advisor  # noqa: PLC0415 - start-up time

    request = options.read_requests([word], {"shape": shape})[0]
    return advisor().read(request.model, dict(request.workload.shape))


def _document(graph: ModelGraph) -> dict[str, Any]:
    from gpusage.graphs.card.text import encode  # noqa: PLC0415 - start-up time
    from gpusage.graphs.summary import summary  # noqa: PLC0415 - start-up time

    text = encode(graph)
    return {"model": documents.model(graph), "summary": summary(graph), "byte_count": len(text), "card": text}


def _save(graphs: Sequence[ModelGraph], output: Path) -> None:
    from gpusage.graphs.card.file import write_file  # noqa: PLC0415 - start-up time

    for graph in graphs:
        write_file(graph, output / f"{graph.name}{SUFFIX}" if output.is_dir() else output)


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
