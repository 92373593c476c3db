"""What `gpusage calibrate` measured on a site's hosts, in a file for each kind of GPU.

A file in doubt is left out with a sentence, in the log and in `gpusage gpus`: predictions go on without it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from gpusage.boundary.typed_documents import MismatchError, read_as
from gpusage_hooks.errors import RequestError

Hosts = tuple[tuple[str, float], ...]
"""GPUs, each with the factor of its hosts."""
SCHEMA = "gpusage.calibration/1"
MOST_DAYS = 400
"""An older file says little about today's hosts and libraries."""
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
    what = f"Key {key!r} of a calibration" if key else "Calibration"
    message = f"{what} must be {rule}; got {got[:80]}. Run 'gpusage calibrate' on an idle node."
    raise RequestError(message)


def read_hosts(paths: Sequence[str]) -> tuple[Hosts, str]:
    """Return the hosts' factor by each of the files at *paths*, and why one of them is not used, if so.

    The same files give the same object, and one line in the log.
    """
    return _hosts(tuple((path, _text(path)) for path in paths))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return "null"


@lru_cache(maxsize=4)
def _hosts(texts: tuple[tuple[str, str], ...]) -> tuple[Hosts, str]:
    factors, trouble = [], ""
    for path, text in texts:
        try:
            measured = checked(json.loads(text))
            factors.append((measured.gpu, measured.host_factor))
        except (RequestError, ValueError, RecursionError) as error:  # noqa: PERF203 - few files, once
            trouble = f"File {path!r} of 'gpus.calibration' is not used: {error}"
            _log.warning("%s", trouble)
    return tuple(factors), trouble
