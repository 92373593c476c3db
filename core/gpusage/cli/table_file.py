"""A table that a user names on the command line: CSV, or Parquet where pyarrow is there; each cell with its place."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

from gpusage.cli.user_file import reading, require_readable, require_regular
from gpusage_hooks.errors import RequestError

Row = Mapping[str, object]
Names = Callable[[Sequence[str], str], Sequence[str]]
"""Returns the columns' usual names, given those of the file and the file; refuses a file where one is missing."""
LONGEST_TEXT = 80


def read_rows(path: Path, what: str, names_of: Names) -> Iterator[tuple[int, Row]]:
    """Yield each row of the file at *path*, with its line.

    Args:
        path: Of the file; Parquet where its name ends so.
        what: What it is, for people: ``Jobs file``.
        names_of: Looks at the line of names.

    Raises:
        RequestError: It cannot be read, is not a table, or *names_of* refuses it.
    """
    if path.suffix == ".parquet":
        yield from _parquet_rows(path, what, names_of)
        return
    with opened_text(path, what) as file:
        yield from csv_rows(file, what, str(path), names_of)


@contextmanager
def opened_text(path: Path, what: str) -> Iterator[IO[str]]:
    """Yield the file at *path*, open to be read as text; an error while it is read becomes one sentence.

    Raises:
        RequestError: It cannot be read, or is no UTF-8 text.
    """
    require_regular(path, what)
    with reading(path, what), path.open(encoding="utf-8-sig", newline="") as file:
        yield file


class Cells:
    """The cells of one line; *where* is its file and line."""

    def __init__(self, row: Row, where: str) -> None:
        self.row, self.where = row, where

    def text(self, name: str) -> str:
        """Return the cell of the column *name*, empty where there is none."""
        value = self.row.get(name)
        return "" if value is None else str(value).strip()

    def number(self, name: str, above: float | None = None, most: float = math.inf) -> float:
        """Return the number in a cell: at least 0 or above *above*, and finite."""
        rule = f"a number {'of at least 0' if above is None else f'above {above:g}'}"
        rule += "" if most == math.inf else f", and at most {most:g}"
        try:
            number = float(self.text(name))
        except ValueError:
            self.refuse(name, rule)

        if not 0 <= number <= most or number == math.inf or (above is not None and number <= above):
            self.refuse(name, rule)
        return number

    def refuse(self, name: str, rule: str) -> NoReturn:
        """Refuse the cell of the column *name*, which must be *rule*.

        Raises:
            RequestError: Always.
        """
        text = self.text(name)
        got = repr(text[:LONGEST_TEXT]) if text else "nothing"
        message = f"Column {name!r} of {self.where} must be {rule}; got {got}. Fix it, or take the line out."
        raise RequestError(message)


def csv_rows(lines: Iterable[str], what: str, origin: str, columns: Names | Sequence[str]) -> Iterator[tuple[int, Row]]:
    """Yield each line of a CSV file, with its number; see `read_rows`. A file without names has those of *columns*."""
    reader = csv.reader(lines, strict=True, skipinitialspace=True)
    try:
        names = columns([name.strip() for name in next(reader, [])], origin) if callable(columns) else columns
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(names):
                message = (
                    f"{what} {origin!r} must have as many cells on each line as names, {len(names)}; got "
                    f"{len(cells)} on line {reader.line_num}. Fix it."
                )
                raise RequestError(message)
            yield reader.line_num, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        message = f"{what} {origin!r} must be CSV; got, on line {reader.line_num}: {error}. Fix it."
        raise RequestError(message) from error


def _parquet_rows(path: Path, what: str, names_of: Names) -> Iterator[tuple[int, Row]]:
    require_readable(path, what)
    try:
        import pyarrow as pa  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from pyarrow import parquet  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        message = (
            f"Library pyarrow must be there to read {str(path)!r}; got: not installed. Install the extra [parquet]."
        )
        raise RequestError(message) from error

    try:
        table = parquet.read_table(path)
        columns = [column.to_pylist() for column in table.columns]
    except (pa.ArrowException, OSError, ArithmeticError) as error:  # a damaged page, a date that Python does not have
        message = f"{what} {str(path)!r} must be Parquet; got: {error}. Write it again."
        raise RequestError(message) from error

    names = names_of(table.column_names, str(path))
    for line, cells in enumerate(zip(*columns, strict=True), start=1):
        yield line, dict(zip(names, cells, strict=True))
