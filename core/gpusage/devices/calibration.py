"""What `gpusage calibrate` measured on a site's hosts, in a file for each kind of GPU, and the catalogue that follows.

A file in doubt is left out with a sentence, in the log and in `gpusage gpus`: predictions go on without it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from gpusage.boundary.typed_documents import MismatchError, read_as
from gpusage.devices.catalogue import Catalogue
from gpusage_hooks.errors import GpuUsageError, RequestError

SCHEMA = "gpusage.calibration/1"
MOST_DAYS = 400
"""An older file says little about today's hosts and libraries."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured on one host.

    Attributes:
        gpu: By the catalogue's name.
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
        found = read_as(Calibration, document)
        key, rule, got = "measured_on", f"a day of the last {MOST_DAYS}", str(found.measured_on)
        if -1 <= (date.today() - found.measured_on).days <= MOST_DAYS:  # noqa: DTZ011 - nor does a clock's day matter
            return found
    except MismatchError as error:
        key, rule, got = error.key, error.rule, str(error.value)
    what = f"Key {key!r} of a calibration" if key else "Calibration"
    message = f"{what} must be {rule}; got {got[:80]}. Run 'gpusage calibrate' on an idle node."
    raise RequestError(message)


def read_calibrations(known: Catalogue, paths: Sequence[str]) -> tuple[Catalogue, str]:
    """Return *known* with what the files at *paths* say of its hosts, and why one of them is not used, if so.

    The catalogue is the same object while no file changes, as predictors cache by identity.
    """
    return _calibrated(known, tuple((path, _text(path)) for path in paths))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return "null"


@lru_cache(maxsize=4)
def _calibrated(known: Catalogue, texts: tuple[tuple[str, str], ...]) -> tuple[Catalogue, str]:
    factors, trouble = {}, ""
    for path, text in texts:
        try:
            found = checked(json.loads(text))
            factors[known.find(found.gpu).board] = found.host_factor
        except (GpuUsageError, ValueError, RecursionError) as error:  # noqa: PERF203 - few files, once
            trouble = f"File {path!r} of 'gpus.calibration' is not used: {error}"
            _log.warning("%s", trouble)
    if not factors:
        return known, trouble

    # Hosts of one site are more alike than those of benchmarks: a kind that nobody measured has the others' mean.
    usual = prod(factors.values()) ** (1.0 / len(factors))
    rows = [
        replace(gpu, host_factor=factors.get(gpu.board, usual), is_calibrated=gpu.board in factors) for gpu in known
    ]
    return Catalogue(rows), trouble
