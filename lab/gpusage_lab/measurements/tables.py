"""The public measurements: one CSV of a folder that the user names, as a table.

pandas and numpy's friends are the extra ``[train]``; nothing that predicts imports this module.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from gpusage_hooks.errors import RequestError
from gpusage_lab.measurements.columns import COLUMNS

Table: TypeAlias = Any
"""A pandas DataFrame; pandas has no types of its own."""


class DataFolder:
    """A folder with the files that ``SOURCES.md`` beside them describes.

    Attributes:
        is_sealed: Whoever makes rows of the files leaves out the families of `gpusage_lab.learning.seal`.
    """

    def __init__(self, folder: str | Path, *, is_sealed: bool = False) -> None:
        self.folder = Path(folder)
        self.is_sealed = is_sealed

    def __contains__(self, file: object) -> bool:
        return (self.folder / str(file)).is_file()

    def read(self, file: str) -> Table:
        """Return the whole of *file*, read once a process; a copy, so that a caller may change it.

        Raises:
            RequestError: The folder has no such file, it is not the whole file, or pandas is not installed.
        """
        path = self.folder / file
        if not path.is_file():
            message = (
                f"Data folder '{self.folder}' must have the file {file}; got none. "
                "Name the folder of the public measurements with --data."
            )
            raise RequestError(message)
        return _read(path).copy()


@lru_cache(maxsize=32)
def _read(path: Path) -> Table:
    """Return the file's rows, once they are seen to be all there."""
    pandas = import_pandas()
    try:
        table = pandas.read_csv(path, low_memory=False)
        content = path.read_bytes()
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise _not_whole(path, f"one that cannot be read ({error})") from error
    lacking = sorted(COLUMNS.get(path.name, frozenset()) - set(table.columns))
    if lacking:
        raise _not_whole(path, f"one without the column{'s' * (len(lacking) > 1)} {', '.join(lacking)}")
    if table.empty:
        raise _not_whole(path, "one without rows")
    if path.suffix == ".csv" and not content.endswith(b"\n"):
        raise _not_whole(path, "one that stops in the middle of a line")
    return table


def _not_whole(path: Path, trouble: str) -> RequestError:
    return RequestError(
        f"File '{path}' must be the whole table that SOURCES.md describes; got {trouble}. Copy it again."
    )


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Let libraries that compute use one thread: the order of a sum is part of its last digit.

    Raises:
        RequestError: The libraries are not installed.
    """
    try:
        from threadpoolctl import (  # type: ignore[import-untyped, unused-ignore]
            threadpool_limits,
        )
    except ImportError as error:
        raise _missing(library="scikit-learn") from error
    import_pandas()
    importlib.import_module("sklearn")  # only what is loaded can be limited
    with threadpool_limits(limits=1):
        yield


def _missing(*, library: str) -> RequestError:
    rule = f"Library {library} must be there to learn; got: not installed."
    return RequestError(f"{rule} Install gpusage with its extra [train].")


def import_pandas() -> Any:  # a module without types
    """Return pandas.

    Raises:
        RequestError: It is not installed.
    """
    try:
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise _missing(library="pandas") from error
    return pd
