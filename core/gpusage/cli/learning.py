"""`gpusage train` and `gpusage evaluate`: refit the predictors, and score them, on a folder of public measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from gpusage.cli import options, tables

Function = TypeVar("Function", bound=Callable[..., Any])
TRAIN_EXAMPLE = """\b
Example:
  gpusage train --data ../shared/data
"""
EVALUATE_EXAMPLE = """\b
Examples:
  gpusage evaluate --data ../shared/data
  gpusage evaluate --data ../shared/data --target step_time -o report.html
"""
SCHEMA = "gpusage.evaluation/1"


def _common(function: Function) -> Function:
    """Add ``--data`` and ``--target``."""
    data = click.option(
        "--data",
        "folder",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        required=True,
        help="Folder of the public measurements; its SOURCES.md says what they are.",
    )
    chosen = click.option("--target", "names", metavar="NAME", multiple=True, help="Only this; may be repeated.")
    return data(chosen(function))


def _targets(names: tuple[str, ...]) -> list[str]:
    from gpusage.learning.targets import TARGETS  # noqa: PLC0415 - start-up time

    for name in names:
        if name not in TARGETS:
            message = f"Target {name!r} must be one of {', '.join(TARGETS)}. Name one of these."
            raise click.UsageError(message)
    return list(names or TARGETS)


@click.command(epilog=TRAIN_EXAMPLE, short_help="Refit the predictors on public measurements.")
@_common
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the artifacts.  [default: where gpusage reads them]",
)
def train(folder: Path, names: tuple[str, ...], output: Path | None) -> None:
    """Fit everything that gpusage ships, in minutes, seeded: the same folder gives the same bytes.

    Needs the extra [train]; neither torch nor a GPU.
    """
    from gpusage.learning import artifacts, targets  # noqa: PLC0415 - start-up time
    from gpusage.learning.tables import DataFolder  # noqa: PLC0415 - as above

    for name in _targets(names):
        targets.forget_what_was_learned()
        for artifact in targets.target(name).fit(DataFolder(folder)):
            path = artifacts.write(artifact, output or artifacts.FOLDER)
            click.echo(f"{name}: {path} ({path.stat().st_size} bytes)")


@click.command(epilog=EVALUATE_EXAMPLE, short_help="Score the predictors on splits that do not leak.")
@_common
@options.json_option
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with plots as well."
)
def evaluate(folder: Path, names: tuple[str, ...], output: Path | None, *, as_json: bool) -> None:
    """Score the predictors on models and GPUs that they were not fitted on, with baselines beside them.

    Needs the extra [train]; neither torch nor a GPU.
    """
    from gpusage.learning import report, targets  # noqa: PLC0415 - start-up time
    from gpusage.learning.tables import DataFolder  # noqa: PLC0415 - as above

    found = {name: targets.target(name).evaluate(DataFolder(folder)) for name in _targets(names)}
    if output is not None:
        output.write_text(report.page(found), encoding="utf-8")
    if as_json:
        tables.print_json({"schema": SCHEMA, "targets": report.documents(found)})
        return
    for scores in found.values():
        for table in scores:
            tables.show_title(table.title)
            columns = [tables.Column(name, is_left=index == 0) for index, name in enumerate(table.columns)]
            tables.show_rows(columns, [[report.cell(value) for value in row] for row in table.rows])
            tables.show("".join(f"\n{note}" for note in table.notes) + "\n")
