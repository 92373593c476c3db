"""Text for people: figures with their intervals, and tables as wide as the terminal.

Colours appear only where there is a terminal and NO_COLOR is unset.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from gpusage.boundary.printable_text import visible_lines
from gpusage_hooks.types import Interval
from gpusage_hooks.units import GIB, LONG_S, MIB, time_scale

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH_WITHOUT_TERMINAL = 120
_UNBOUNDED = 10_000
_COUNTS = ((1e3, 1.0, ""), (1e6, 1e-3, "k"), (1e9, 1e-6, "M"), (1e12, 1e-9, "G"), (float("inf"), 1e-12, "T"))


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
    # rich writes on its own: captured, the text goes through click, whose errors we handle.
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


def columns(*titles: str, left: Collection[str] = (), optional: Collection[str] = ()) -> tuple[Column, ...]:
    """Return columns by their *titles*; the first one, which names the row, is *left* as well."""
    return tuple(Column(title, title in (titles[0], *left), title in optional) for title in titles)


def show_rows(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in the widest form that the terminal holds.

    A line a row; else each interval below its value; else without optional columns, the last one first; else a
    paragraph of ``title: cell`` lines per row. A file or a pipe holds every column.

    Args:
        columns: The first one names the row.
        rows: Cells; in a column of numbers, an interval is written `` (low-high)`` at a cell's end.
    """
    screen = console()
    # The first form that fits is taken; a file has no width, so that it gets the second at most.
    for number, (chosen, table) in enumerate(_forms(columns, rows)):
        width = screen.measure(table, options=screen.options.update(max_width=_UNBOUNDED)).maximum
        if width <= screen.width or (number and not has_width()):
            missing = [column.title for column in columns if column not in chosen]
            show(table, least_width=width)
            show(*([f"Not shown, the terminal is too narrow: {', '.join(missing)}."] if missing else []))
            return

    # A paragraph for each row: its first cell is the title, empty cells are left out.
    paragraphs = []
    for first, *others in rows:
        cells = zip(columns[1:], others, strict=True)
        paragraphs.append("\n".join([first, *(f"  {column.title}: {cell}" for column, cell in cells if cell)]))
    show("\n\n".join(paragraphs))


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
    # From here on intervals stand below their values, and optional columns go, the last one first.
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


def time_text(figure: Interval) -> str:
    """Return seconds as, for example, ``197 ms (170-231)``."""
    scale, unit = time_scale(figure.value)
    return f"{number_text(figure.value * scale)} {unit} {_ends(figure, scale)}"


def seconds_text(value_s: float) -> str:
    """Return seconds without an interval, for example ``197 ms`` or, from ten minutes on, ``1 h 5 min``."""
    if value_s >= LONG_S or value_s == 0:
        return duration_text(value_s)
    scale, unit = time_scale(value_s)
    return f"{number_text(value_s * scale)} {unit}"


def duration_text(time_s: float) -> str:
    """Return how long a run takes, as people read it: ``45 s``, ``12 min``, ``1 h 5 min``."""
    minutes = round(time_s / 60)
    if time_s < 60:  # seconds of a minute
        return f"{max(0.0, time_s):.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"  # of an hour


def size_text(value_bytes: float) -> str:
    """Return bytes without an interval, for example ``6.1 GiB`` or ``98 MiB``."""
    return f"{value_bytes / GIB:.1f} GiB" if abs(value_bytes) >= GIB else f"{value_bytes / MIB:.0f} MiB"


def memory_text(figure: Interval) -> str:
    """Return bytes as, for example, ``6.1 GiB (5.6-6.9)``."""
    return f"{figure.value / GIB:.1f} GiB ({figure.low / GIB:.1f}-{figure.high / GIB:.1f})"


def share_text(figure: Interval) -> str:
    """Return a share of 0 to 1 as, for example, ``31 % (24-39)``."""
    return f"{100 * figure.value:.0f} % ({100 * figure.low:.0f}-{100 * figure.high:.0f})"


def interval_text(figure: Interval, unit: str = "") -> str:
    """Return a figure with *unit* right behind it, for example ``1.08x (0.95-1.23)``; no ends where they are exact."""
    exact = figure.low == figure.value == figure.high
    return f"{number_text(figure.value)}{unit}" + ("" if exact else f" {_ends(figure, 1.0)}")


def number_text(value: float) -> str:
    """Return *value* with three digits, never with an exponent."""
    # The limits lie half a digit below 10 and 100: 9.996 is written 10.0.
    if abs(value) < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def count_text(value: float) -> str:
    """Return a large count with the SI letter behind it, for example ``25.6 M``."""
    scale, suffix = next((scale, suffix) for limit, scale, suffix in _COUNTS if abs(value) < limit)
    return f"{number_text(value * scale) if suffix else f'{value:g}'} {suffix}".rstrip()


def _ends(figure: Interval, scale: float) -> str:
    return f"({number_text(figure.low * scale)}-{number_text(figure.high * scale)})"
