"""The command that all experiments share: where the data is, and how the tables are printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from gpusage.cli import tables
from gpusage_lab.learning import report
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder

Experiment = Callable[[DataFolder], Sequence[ScoreTable]]
SCHEMA = "gpusage.experiment/1"
USUAL = Path(__file__).resolve().parents[4] / "shared" / "data"
"""The data's folder beside the checkout."""


def command_of(name: str, experiment: Experiment, files: Sequence[str]) -> click.Command:
    """Return the command of an experiment: `--data FOLDER`, `--json`, `--markdown`.

    Without the data it says so and ends well, as `make bench` runs every script on any machine.

    Args:
        name: Of the experiment.
        experiment: Makes the tables.
        files: Without which it cannot.
    """

    @click.command(name, help=f"Remake the experiments of {name}, on public measurements.")
    @click.option(
        "--data",
        "folder",
        type=click.Path(path_type=Path),
        default=USUAL,
        help="Folder of the public measurements.  [default: ../shared/data beside the checkout]",
    )
    @click.option("--json", "form", flag_value="json", help="Print JSON.")
    @click.option("--markdown", "form", flag_value="markdown", help="Print Markdown, as pages of docs/ have it.")
    def command(folder: Path, form: str | None) -> None:
        data = DataFolder(folder)
        missing = [file for file in files if file not in data]
        if missing:
            message = f"Folder '{folder}' must have {', '.join(missing)}; got none. Name the data's folder with --data."
            click.echo(message, err=True)
            return
        score_tables = experiment(data)
        if form == "json":
            tables.print_json({"schema": SCHEMA, **report.documents({name: score_tables})})
        elif form == "markdown":
            click.echo("\n".join(line for table in score_tables for line in (*report.table_lines(table), "")))
        else:
            report.show_scores(score_tables)

    return command
