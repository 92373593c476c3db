"""The table of a campaign: one row per side of a measurement, all rows of a measurement appended at once.

A CSV file with a fixed header. A process may be killed at any moment: the rows of one measurement are written in one
call and brought to the disk, and a row that was cut off all the same is dropped when the file is opened again.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusage_hooks.errors import RequestError

Row = Mapping[str, Any]

OPERATOR_COLUMNS = (
    *("item", "model", "batch_size", "mode", "precision", "device", "gpu"),
    *("operator", "shapes", "kernel", "count", "device_time_s", "host_time_s", "steps"),
)


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A CSV file that only grows."""

    path: Path
    columns: Sequence[str]

    def open(self) -> None:
        """Make the file, or check that it is a table of ours, and drop a last row that was cut off.

        Raises:
            RequestError: The file is another table.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        header = self._text([dict(zip(self.columns, self.columns, strict=True))])
        if whole and not whole.startswith(header):
            message = (
                f"Table '{self.path}' must have the columns of this version; got others. "
                "Name another file with --output."
            )
            raise RequestError(message)
        if not whole or len(whole) < len(content):
            unfinished = self.path.with_name(f".{self.path.name}.unfinished")
            unfinished.write_bytes(whole or header)
            unfinished.replace(self.path)

    def append(self, rows: Iterable[Row]) -> None:
        """Append *rows* in one write, and bring them to the disk."""
        data = self._text(rows)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        finally:
            os.close(handle)

    def rows(self) -> list[dict[str, str]]:
        """Return every row; an empty text is a value that was not measured."""
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _text(self, rows: Iterable[Row]) -> bytes:
        file = io.StringIO()
        writer = csv.DictWriter(file, self.columns, restval="", lineterminator="\n")
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})
        return file.getvalue().encode()


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return " ".join(value.split())
    return value
