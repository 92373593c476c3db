"""The public record beside what gpusage predicts: the summaries of ``evaluate --target published``.

Nothing is fitted on it.

Example: python bench/published.py --data ../shared/data
"""

from __future__ import annotations

from dataclasses import replace

from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.comparison import compare, summaries
from gpusage_lab.published.rows import LANGUAGE, VISION
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import load_zoo


def _ratio_cell(value: Cell) -> Cell:
    """Return a cell with the two decimals that a ratio needs, and without the bar that ends a column."""
    return f"{value:g}" if isinstance(value, float) else value.replace("|", "/") if isinstance(value, str) else value


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return the summaries."""
    made = summaries(compare(data, load_zoo()))
    return [replace(table, rows=tuple(tuple(map(_ratio_cell, row)) for row in table.rows)) for table in made]


main = command_of("published", tables, (VISION, LANGUAGE))

if __name__ == "__main__":
    main()
