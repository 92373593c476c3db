"""The public measurements: one CSV of a folder that the user names, as a table.

pandas and numpy's friends are the extra ``[train]``; nothing that predicts imports this module.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from gpusage_hooks.errors import RequestError

Table: TypeAlias = Any
"""A pandas DataFrame; pandas has no types of its own."""


class DataFolder:
    """A folder with the files that ``SOURCES.md`` beside them describes."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __contains__(self, file: object) -> bool:
        return (self.folder / str(file)).is_file()

    def read(self, file: str) -> Table:
        """Return the whole of *file*, read once a process; a copy, so that a caller may change it.

        Raises:
            RequestError: The folder has no such file, or pandas is not installed.
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
    return import_pandas().read_csv(path, low_memory=False)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Let libraries that compute use one thread: the order of a sum is part of its last digit.

    Raises:
        RequestError: The libraries are not installed.
    """
    try:
        from threadpoolctl import (  # type: ignore[import-untyped, unused-ignore] # noqa: PLC0415 - an extra
            threadpool_limits,
        )
    except ImportError as error:
        raise _missing(library="scikit-learn") from error
    import_pandas()
    importlib.import_module("sklearn")  # only what is loaded can be limited
    with threadpool_limits(limits=1):
        yield


def _missing(*, library: str) -> RequestError:
    return RequestError(f"Library {library} must be there to learn; got: not installed. pip install 'gpusage[train]'.")


def import_pandas() -> Any:  # noqa: ANN401 - a module without types
    """Return pandas.

    Raises:
        RequestError: It is not installed.
    """
    try:
        import pandas as pd  # type: ignore[import-untyped, unused-ignore] # noqa: PLC0415 - an extra
    except ImportError as error:
        raise _missing(library="pandas") from error
    return pd
