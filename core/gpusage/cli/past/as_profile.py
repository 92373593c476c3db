"""`gpusage decisions --as-profile`: the store's runs alone on a GPU as the folder that `gpusage train` reads."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from gpusage.boundary.printable_text import visible
from gpusage.cli import tables
from gpusage.experience.profile_rows import COLUMNS, Cell, profile_row
from gpusage.settings.configuration_file import load_configuration
from gpusage.store.opening import open_store
from gpusage_hooks.errors import RequestError

Row = Mapping[str, Cell]
_FORMULA = ("=", "+", "-", "@")


def write_profiles(folder: Path) -> None:
    """Write one table per GPU into *folder*, in place of those that were written before.

    Raises:
        GpuUsageError: The store cannot be read, or the folder not be written.
    """
    configuration = load_configuration()
    with closing(open_store(configuration.store.url)) as store:
        observations = store.usage()
    by_gpu: dict[str, list[Row]] = defaultdict(list)
    for each in observations:
        least_s = configuration.learning.least_sampled_s
        row = profile_row(each.usage, each.decision, least_s) if each.decision else None
        if row is not None:
            by_gpu[str(row["gpu"])].append(row)
    try:
        for gpu, rows in by_gpu.items():
            _write(folder / "profile" / f"site-{_file_name(gpu)}.csv", rows)
    except OSError as error:
        message = f"Folder {str(folder)!r} must be one that you may write; got: {error}. Name another one."
        raise RequestError(message) from error
    count = sum(map(len, by_gpu.values()))
    tables.show(f"{count} of {len(observations)} runs were alone on a whole GPU: {count} rows in {folder / 'profile'}.")


def _file_name(gpu: str) -> str:
    """Return the name of a GPU, perhaps a driver's, as a valid file name."""
    return "".join(character if character.isalnum() or character in "-." else "-" for character in gpu)


def _write(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _harmless(cell) for name, cell in row.items()} for row in rows)


def _harmless(cell: Cell) -> Cell:
    """Return *cell* without what acts on a terminal, or on a spreadsheet, which reads ``=1+1`` as a formula."""
    if not isinstance(cell, str):
        return cell
    text = visible(cell)
    return f"'{text}" if text.startswith(_FORMULA) else text
