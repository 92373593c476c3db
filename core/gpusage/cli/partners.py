"""`gpusage colocate TARGET --among FILE`: which of the file's models is the best partner on one GPU.

The file has one model a line with its own options, as on the command line; a line that is empty or begins with ``#`` is
left out. Paths count from the file's folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from gpusage.api import advisor
from gpusage.cli import documents, figures, options, tables
from gpusage.cli.user_file import read_text
from gpusage_hooks.errors import GpuUsageError, RequestError
from gpusage_hooks.types import Colocation, Gpu, GpuNeed, ModelRequest

SCHEMA = "gpusage.partners/1"
COLUMNS = (
    tables.Column("partner", is_left=True),
    tables.Column("work together"),
    tables.Column("target"),
    tables.Column("partner's own"),
    tables.Column("fits"),
    tables.Column("recommended"),
)


class Partner(NamedTuple):
    """One candidate, and what it and the target do to each other; the target is the first of the two."""

    model: str
    together: Colocation

    @property
    def order(self) -> tuple[bool, bool, float]:
        """Return what to sort by: those that fit and are recommended first, then the most work."""
        return not self.together.fits, not self.together.recommended, -self.together.throughput_sum.value


def rank(
    context: click.Context, models: Sequence[str], path: Path, gpu: str, run: Mapping[str, Any], *, as_json: bool
) -> bool:
    """Print the candidates of the file at *path*, the best partner first; tell whether one is recommended.

    Raises:
        GpuUsageError: The file or one of its models cannot be read.
    """
    if len(models) != 1:
        message = f"Models with --among must be one, the target; got {len(models)}. The others stand in the file."
        raise click.UsageError(message, context)
    row = advisor().catalogue.find(gpu)
    (target,) = options.read_requests(models, run)
    own = _need(target, row, Path())
    ranked = sorted((_partner(line, number, own, row, path, run) for number, line in _lines(path)), key=_order)
    if as_json:
        tables.print_json({"schema": SCHEMA, "gpu": row.name, "target": target.model, "partners": _documents(ranked)})
    else:
        _show(target, ranked, row)
    return any(each.together.recommended for each in ranked)


def _order(partner: Partner) -> tuple[bool, bool, float]:
    return partner.order


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return the models of a file with the numbers of their lines."""
    text = read_text(path, "Candidates file")
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    models = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not models:
        message = f"Candidates file {str(path)!r} must have at least one model, one a line; got none. Add one."
        raise RequestError(message)
    return models


def _partner(line: str, number: int, own: GpuNeed, gpu: Gpu, path: Path, run: Mapping[str, Any]) -> Partner:
    try:
        (request,) = options.read_requests([line], run)
        need = _need(request, gpu, path.parent)
    except GpuUsageError as error:
        message = f"Line {number} of candidates file {str(path)!r} must be a model that can be read; got: {error}"
        raise RequestError(message) from error
    return Partner(line, advisor().colocate([own, need], gpu))


def _need(request: ModelRequest, gpu: Gpu, folder: Path) -> GpuNeed:
    graph = advisor().read(options.beside(folder, request.model), dict(request.workload.shape))
    return advisor().predict(graph, request.workload, [gpu])[0]


def _documents(ranked: Sequence[Partner]) -> list[dict[str, Any]]:
    return [
        {
            "model": each.model,
            "throughput_sum": documents.interval(each.together.throughput_sum),
            "target": documents.interval(each.together.normalised_throughput[0]),
            "partner": documents.interval(each.together.normalised_throughput[1]),
            "fits": each.together.fits,
            "recommended": each.together.recommended,
        }
        for each in ranked
    ]


def _show(target: ModelRequest, ranked: Sequence[Partner], gpu: Gpu) -> None:
    tables.show_title(f"Partners of {target.model} on one {gpu.name}, the best first")
    tables.show("")
    tables.show_rows(
        COLUMNS,
        [
            [
                each.model,
                figures.plain(each.together.throughput_sum, "x"),
                figures.share(each.together.normalised_throughput[0]),
                figures.share(each.together.normalised_throughput[1]),
                "yes" if each.together.fits else "no",
                "yes" if each.together.recommended else "no",
            ]
            for each in ranked
        ],
    )
