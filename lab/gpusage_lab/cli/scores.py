"""Score tables on a terminal: each with its title, its rows in the widest form that fits, and its notes."""

from __future__ import annotations

from collections.abc import Iterable

from gpusage.cli import tables
from gpusage_lab.learning import report
from gpusage_lab.learning.targets import ScoreTable


def show_scores(score_tables: Iterable[ScoreTable]) -> None:
    """Print *score_tables*, one table below the other."""
    for table in score_tables:
        tables.show_title(table.title)
        columns = [tables.Column(name, is_left=index == 0) for index, name in enumerate(table.columns)]
        tables.show_rows(columns, [[report.cell(value) for value in row] for row in table.rows])
        tables.show("".join(f"\n{note}" for note in table.notes) + "\n")
