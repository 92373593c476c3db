"""Tables and text for people: as wide as the terminal, coloured only where there is one and NO_COLOR is unset."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDTH_WITHOUT_TERMINAL = 120
_UNBOUNDED = 10_000
_GAP = 2


def print_json(document: Any) -> None:  # noqa: ANN401 - any JSON
    """Print one JSON document."""
    click.echo(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))


def console() -> Console:
    """Return a console on standard output, with its width and its colours."""
    from rich.console import Console  # noqa: PLC0415 - start-up time

    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if has_width else WIDTH_WITHOUT_TERMINAL, highlight=False, markup=False, emoji=False)


def show(*parts: str | Text | Table) -> None:
    """Print *parts* one below the other, through click, so that a closed pipe is an ordinary error."""
    screen = console()
    with screen.capture() as capture:
        for part in parts:
            screen.print(part)
    for line in capture.get().splitlines():
        click.echo(line.rstrip(), color=True)


def show_title(text: str) -> None:
    """Print *text* as a heading."""
    from rich.text import Text  # noqa: PLC0415 - start-up time

    show(Text(text, style="bold"))


def show_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in the widest form that the terminal holds.

    A line a row; else each interval below its value; else a paragraph of ``heading: cell`` lines a row.

    Args:
        headings: One a column; a heading that begins with ``<`` aligns its column to the left.
        rows: Cells; an interval is written `` (low-high)`` at a cell's end.
    """
    screen = console()
    for cells in (rows, [[cell.replace(" (", "\n(") for cell in row] for row in rows]):
        table = _table(headings, cells)
        if screen.measure(table, options=screen.options.update(max_width=_UNBOUNDED)).maximum <= screen.width:
            show(table)
            return
    show("\n\n".join(_paragraph([heading.lstrip("<") for heading in headings], row) for row in rows))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table  # noqa: PLC0415 - start-up time

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for heading in headings:
        left = heading.startswith("<")
        table.add_column(heading.lstrip("<"), justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _paragraph(headings: Sequence[str], row: Sequence[str]) -> str:
    """Return a row as lines: the first cell is the title, empty cells are left out."""
    lines = [f"  {heading}: {cell}" for heading, cell in zip(headings[1:], row[1:], strict=True) if cell]
    return "\n".join([row[0], *lines])
