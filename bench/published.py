"""The public record beside what gpusage predicts, as Markdown: the summaries of ``evaluate --target published``.

Nothing is fitted on it.

Example: python bench/published.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from gpusage_lab.learning.report import cell
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.comparison import compare, summaries
from gpusage_lab.published.rows import LANGUAGE, VISION
from gpusage_planning.zoo import load_zoo

USUAL = Path(__file__).resolve().parents[2] / "shared" / "data"


def _cell(value: str | float | None) -> str:
    """Return a cell with the two decimals that a ratio needs."""
    return f"{value:g}" if isinstance(value, float) else cell(value).replace("|", "/")


def lines_of(table: ScoreTable) -> Iterator[str]:
    """Yield *table* in Markdown, unfolded: a block of a page begins with its title."""
    yield from (
        f"**{table.title}**",
        "",
        f"| {' | '.join(table.columns)} |",
        f"|---|{'--:|' * (len(table.columns) - 1)}",
    )
    yield from (f"| {' | '.join(_cell(value) for value in row)} |" for row in table.rows)
    yield from ("", *(f"{note}  " for note in table.notes), "")


@click.command(help=__doc__)
@click.option("--data", "folder", type=click.Path(path_type=Path), default=USUAL)
def main(*, folder: Path) -> None:
    """Print the tables; without the published rows, say so and end well."""
    data = DataFolder(folder)
    if VISION not in data or LANGUAGE not in data:
        click.echo(f"Folder '{folder}' must have {VISION} and {LANGUAGE}; got others. Name it with --data.", err=True)
        return
    record = compare(data, load_zoo())
    click.echo("\n".join(line for table in summaries(record) for line in lines_of(table)))


if __name__ == "__main__":
    main()
