"""An error as one sentence: ours says what to do; anyone else's is named with its kind and its place."""

from __future__ import annotations

import traceback
from pathlib import PurePath

from gpusage_hooks.errors import GpuUsageError


def sentence(error: BaseException) -> str:
    """Return what *error* says: one of ours its own sentence, any other as `describe_error` has it."""
    return _words(error) if isinstance(error, GpuUsageError) else describe_error(error)


def describe_error(error: BaseException) -> str:
    """Return what kind of error *error* is, what it says, and where it was raised, on one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    words = " ".join(_words(error).split())
    return f"{type(error).__name__}{f': {words}' if words else ''} ({PurePath(where.filename).name}:{where.lineno})"


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a plugin's own kind of error may say nothing at all
        return ""
