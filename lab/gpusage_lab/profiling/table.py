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
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from gpusage.experience.profile_rows import COLUMNS
from gpusage_hooks.errors import RequestError
from gpusage_lab.profiling.crew import Measured
from gpusage_lab.profiling.items import Item, Sharing, Side
from gpusage_lab.profiling.plan import shape_text

Row = Mapping[str, Any]
Facts = Mapping[str, Any]
"""Of the machine: the same in every row."""


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


def rows_of(item: Item, outcome: Measured, sharing: Sharing, facts: Facts) -> list[dict[str, Any]]:
    """Return one row per side."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    common = {
        "item": item.key,
        "kind": item.kind,
        "sides": len(item.sides),
        "measured_at": now,
        "seconds": item.seconds,
        "sharing": sharing,
        "gpusage": _version(),
    }
    held = outcome.readings.get("process_bytes") or {}
    rows = []
    for place, side in enumerate(item.sides):
        columns = {**facts, **outcome.readings, **outcome.answers[place], **common}
        columns |= _request_columns(item, side, place)
        columns["process_bytes"] = held.get(outcome.pids[place]) if outcome.pids else None
        rows.append({name: columns.get(name) for name in COLUMNS})
    return rows


def _request_columns(item: Item, side: Side, place: int) -> dict[str, Any]:
    workload = side.job.workload
    others = [other.label for other in (*item.sides[:place], *item.sides[place + 1 :])]
    return {
        "side": place,
        "model": side.job.model,
        "batch_size": workload.batch_size,
        "mode": workload.mode,
        "precision": workload.precision,
        "optimizer": workload.optimizer if workload.mode == "train" else None,
        "shape": shape_text(side),
        "stall_ratio": side.job.stall_ratio,
        "partners": "|".join(others),
        "thread_percent": side.percent,
    }


def _version() -> str:
    try:
        return metadata.version("gpusage")
    except metadata.PackageNotFoundError:  # a lent machine has a checkout alone
        return "from source"
