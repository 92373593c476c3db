"""Score tables for people and programs: on a terminal, in Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpusage.cli import tables
from gpusage_lab.learning.targets import ScoreTable

THREE_DIGITS = 100
"""From here on a cell shows no decimals."""
LONG = 12
"""Tables of more rows are folded in Markdown."""


def cell(value: str | float | None) -> str:
    """Return one cell's text."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.{1 if abs(value) < THREE_DIGITS else 0}f}"
    return str(value)


def table_lines(table: ScoreTable) -> Iterator[str]:
    """Yield the lines of *table* in Markdown: its title, its rows, its notes."""
    is_long = len(table.rows) > LONG
    yield from (f'<details markdown="1"><summary>{table.title}</summary>' if is_long else f"**{table.title}**", "")
    yield f"| {' | '.join(table.columns)} |"
    yield f"|---|{'--:|' * (len(table.columns) - 1)}"
    yield from (f"| {' | '.join(cell(value) for value in row)} |" for row in table.rows)
    yield ""
    yield from (f"{note}  " for note in table.notes)
    if is_long:
        yield from ("", "</details>")


def documents(results: Mapping[str, Sequence[ScoreTable]]) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {name: [asdict(table) for table in scores] for name, scores in results.items()}


def show_scores(score_tables: Iterable[ScoreTable]) -> None:
    """Print *score_tables* on the terminal, each in the widest form that fits, one below the other."""
    for table in score_tables:
        tables.show_title(table.title)
        columns = tables.columns(*table.columns)
        tables.show_rows(columns, [[cell(value) for value in row] for row in table.rows])
        tables.show("".join(f"\n{note}" for note in table.notes) + "\n")
