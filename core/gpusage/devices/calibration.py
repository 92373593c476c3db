"""What `gpusage calibrate` measured on a site's hosts, in a file for each kind of GPU.

A file in doubt is left out with a sentence, in the log and by `doctor`: predictions go on without it.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Annotated, Literal

from msgspec import Meta

from gpusage.boundary.typed_documents import MismatchError, read_as
from gpusage.devices.catalogue import Catalogue
from gpusage_hooks.errors import GpuUsageError, RequestError

SCHEMA = "gpusage.calibration/1"
MOST_DAYS = 400
"""An older file says little about today's hosts and libraries."""
MOST_BYTES = 65536
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured on one host.

    Attributes:
        gpu: The board, by the catalogue's name.
        device: ``cuda``; a trial on a processor says nothing of a GPU.
        measured_on: The day.
        host_factor: How many times as long as usual the host takes to launch, the median of the models.
        host_spread: The largest of these factors over the smallest.
        gpu_factor: How many times as long as by its row the GPU takes, the median: whether the row is this GPU's. No
            prediction has it, as what one model misses by, another does not.
    """

    schema: Annotated[Literal["gpusage.calibration/1"], Meta(description=repr(SCHEMA))]
    gpu: str
    device: Annotated[Literal["cuda"], Meta(description="'cuda', not a trial")]
    measured_on: Annotated[date, Meta(description="a day")]
    host_factor: Annotated[float, Meta(ge=0.25, le=8, description="a number from 0.25 to 8")]
    host_spread: Annotated[float, Meta(ge=1, le=2, description="a number from 1 to 2")]
    gpu_factor: Annotated[float, Meta(ge=0.5, le=2, description="a number from 0.5 to 2")]


def checked(document: object) -> Calibration:
    """Return *document* as a calibration that predictions may use.

    Raises:
        RequestError: It is in doubt.
    """
    try:
        measured = read_as(Calibration, document)
        key, rule, got = "measured_on", f"a day of the last {MOST_DAYS}", str(measured.measured_on)
        if -1 <= (date.today() - measured.measured_on).days <= MOST_DAYS:  # noqa: DTZ011 - nor does a clock's day matter
            return measured
    except MismatchError as error:
        key, rule, got = error.key, error.rule, str(error.value)
    what = f"Key {key!r} of a calibration must be {rule}"
    what = what if key else "Calibration must be a JSON table in a small regular file that you can read"
    message = f"{what}; got {got[:80]}. Run 'gpusage calibrate' on an idle node."
    raise RequestError(message)


def calibrated(paths: Sequence[str], known: Catalogue) -> tuple[Catalogue, str]:
    """Return *known* with the hosts of the files at *paths*, and why one of these is not used; empty where all are.

    The same files give the same object, by which predictors cache, and one line in the log.
    """
    return _calibrated(tuple((path, _text(path)) for path in paths), known)


def _text(path: str) -> str:
    """Return the JSON in the small regular file at *path*; else, as JSON, what was found."""
    try:
        # A pipe without a writer would keep the daemon waiting.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            content = file.read(MOST_BYTES + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
        json.loads(content)  # a longer one ends within its table
        return content.decode("utf-8-sig")  # as some editors write it
    except (OSError, ValueError, RecursionError) as error:
        return json.dumps(getattr(error, "strerror", None) or "another content")


@lru_cache(maxsize=4)
def _calibrated(texts: tuple[tuple[str, str], ...], known: Catalogue) -> tuple[Catalogue, str]:
    newest: dict[str, tuple[date, str, float]] = {}
    trouble = ""
    for path, text in texts:
        try:
            measured = checked(json.loads(text))
            board = known.find(measured.gpu).board
            day, other, _ = newest.get(board, (date.min, "", 1.0))
            older = other if measured.measured_on >= day else path
            if older != path:
                newest[board] = (measured.measured_on, path, measured.host_factor)
            reason = f"GPU {board} must have one file; got a newer one, {newest[board][1]!r}. Remove the older one."
        except GpuUsageError as error:
            older, reason = path, str(error)
        if older:
            trouble = f"File {older!r} of 'gpus.calibration' is not used: {reason}"
            _log.warning("%s", trouble)
    return known.with_figures({board: {"host_factor": factor} for board, (*_, factor) in newest.items()}), trouble
