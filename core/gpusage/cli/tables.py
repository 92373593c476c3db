"""Tables and text for people: as wide as the terminal, coloured only where there is one and NO_COLOR is unset."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from gpusage.boundary.printable_text import visible_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH_WITHOUT_TERMINAL = 120
_UNBOUNDED = 10_000


def print_json(document: object) -> None:
    """Print one JSON document."""
    click.echo(json_text(document), nl=False)


def json_text(document: object) -> str:
    """Return a document as a file has it, its last line ended."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def console() -> Console:
    """Return a console on standard output, with its width and its colours."""
    from rich.console import Console  # JSON needs none of it

    return Console(width=None if has_width() else WIDTH_WITHOUT_TERMINAL, highlight=False, markup=False, emoji=False)


def has_width() -> bool:
    """Return whether standard output is a terminal, or the caller says how wide it is."""
    return sys.stdout.isatty() or "COLUMNS" in os.environ


def show(*parts: str | Table, style: str = "", least_width: int = 0) -> None:
    """Print *parts* one below the other, through click, so that a closed pipe is an ordinary error."""
    screen = console()
    screen.width = max(screen.width, least_width)
    with screen.capture() as capture:
        for part in parts:
            screen.print(visible_lines(part) if isinstance(part, str) else part, style=style)
    for line in capture.get().splitlines():
        click.echo(line.rstrip(), color=True)


def show_title(text: str) -> None:
    """Print *text* as a heading."""
    show(text, style="bold")


class Column(NamedTuple):
    """One column; an optional one is left out where the terminal is too narrow."""

    title: str
    is_left: bool = False
    is_optional: bool = False


def show_rows(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in the widest form that the terminal holds.

    A line a row; else each interval below its value; else without optional columns, the last one first; else a
    paragraph of ``title: cell`` lines per row. A file or a pipe holds every column.

    Args:
        columns: The first one names the row.
        rows: Cells; in a column of numbers, an interval is written `` (low-high)`` at a cell's end.
    """
    screen = console()
    for number, (chosen, table) in enumerate(_forms(columns, rows)):
        width = screen.measure(table, options=screen.options.update(max_width=_UNBOUNDED)).maximum
        if width <= screen.width or (number and not has_width()):
            missing = [column.title for column in columns if column not in chosen]
            show(table, least_width=width)
            show(*([f"Not shown, the terminal is too narrow: {', '.join(missing)}."] if missing else []))
            return

    show("\n\n".join(_paragraph(columns, row) for row in rows))


def show_filled(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print *rows* as `show_rows` does, without columns that are empty throughout."""
    show_rows(*filled(columns, rows))


def filled(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> tuple[Sequence[Column], list[list[str]]]:
    """Return *columns* and *rows* without the columns that are empty throughout."""
    numbers = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    return [columns[number] for number in numbers], [[row[number] for number in numbers] for row in rows]


def _forms(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[tuple[Sequence[Column], Table]]:
    """Yield columns and table of each form, the widest first."""
    yield columns, _table(columns, rows, gap=2)
    wide = list(columns)
    while True:
        folded = [
            [
                cell if column.is_left else cell.replace(" (", "\n(")
                for cell, column in zip(row, columns, strict=True)
                if column in wide
            ]
            for row in rows
        ]

        narrow = [column._replace(title=column.title.replace(" ", "\n")) for column in wide]
        yield wide, _table(narrow, folded, gap=1)
        optional = [column for column in wide if column.is_optional]
        if not optional:
            return

        wide.remove(optional[-1])


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, gap: int) -> Table:
    from rich.table import Table  # JSON needs none of it

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="left" if column.is_left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(visible_lines, row))
    return table


def _paragraph(columns: Sequence[Column], row: Sequence[str]) -> str:
    """Return a row as lines: the first cell is the title, empty cells are left out."""
    cells = zip(columns[1:], row[1:], strict=True)
    return "\n".join([row[0], *(f"  {column.title}: {cell}" for column, cell in cells if cell)])
