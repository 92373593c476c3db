"""`gpusage train` and `gpusage evaluate`: refit the predictors, and score them, on a folder of public measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpusage.cli import options, tables

if TYPE_CHECKING:
    from gpusage_lab.learning.targets import ScoreTable

Function = TypeVar("Function", bound=Callable[..., Any])
TRAIN_EXAMPLE = """\b
Example:
  gpusage train --data ../shared/data
"""
EVALUATE_EXAMPLE = """\b
Examples:
  gpusage evaluate --data ../shared/data
  gpusage evaluate --data ../shared/data --target step_time -o report.html
  gpusage evaluate --data ../shared/data --artifact mine/step_time.json
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
    from gpusage_lab.learning.targets import TARGETS  # noqa: PLC0415 - start-up time

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
    from gpusage_lab.learning import artifacts, targets  # noqa: PLC0415 - start-up time
    from gpusage_lab.measurements.tables import DataFolder, on_one_thread  # noqa: PLC0415 - as above

    data, chosen = DataFolder(folder), _targets(names)
    artifacts.check_writable(output or artifacts.FOLDER)
    written: dict[str, Path] = {}
    with on_one_thread():
        for number, name in enumerate(chosen, start=1):
            click.echo(f"{name}, {number} of {len(chosen)}", err=True)
            with artifacts.reading(written):  # a target is fitted on what the one before it has just left
                made = targets.target(name).fit(data)
            for artifact in made:
                path = written[artifact.name] = artifacts.write(artifact, output or artifacts.FOLDER)
                click.echo(f"{name}: {path} ({path.stat().st_size} bytes)")


@click.command(epilog=EVALUATE_EXAMPLE, short_help="Score the predictors on splits that do not leak.")
@_common
@options.json_option
@click.option(
    "--artifact",
    type=click.Path(exists=True, path_type=Path),
    help="Score only this artifact, or the artifacts of this folder, as they are.  [default: the shipped ones]",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with plots as well."
)
def evaluate(
    folder: Path, names: tuple[str, ...], artifact: Path | None, output: Path | None, *, as_json: bool
) -> None:
    """Score the predictors on models and GPUs that they were not fitted on, with baselines beside them.

    Each is refitted without what it is tested on; then the shipped artifacts are asked as they are.
    Needs the extra [train]; neither torch nor a GPU.
    """
    from gpusage_lab.cli.scores import show_scores  # noqa: PLC0415 - start-up time
    from gpusage_lab.learning import artifacts, report  # noqa: PLC0415 - as above

    if output is not None:
        artifacts.check_writable(output.parent)
    found = _evaluated(folder, _targets(names), artifact)
    if output is not None:
        output.write_text(report.page(found), encoding="utf-8")
    if as_json:
        tables.print_json({"schema": SCHEMA, "targets": report.documents(found)})
        return
    for made in found.values():
        show_scores(made)


def _evaluated(folder: Path, names: list[str], artifact: Path | None) -> dict[str, list[ScoreTable]]:
    from gpusage_lab.learning import artifacts, as_it_is, targets  # noqa: PLC0415 - start-up time
    from gpusage_lab.measurements.tables import DataFolder, on_one_thread  # noqa: PLC0415 - as above

    data = DataFolder(folder)
    with on_one_thread():
        if artifact is None:
            return {name: [*targets.target(name).evaluate(data), *as_it_is.tables(name, data)] for name in names}
        paths = artifacts.found_at(artifact, names)
        as_it_is.check_readable(paths)
        with artifacts.reading(paths):
            return {name: [*as_it_is.tables(name, data), *as_it_is.never_fitted(name, data)] for name in paths}
