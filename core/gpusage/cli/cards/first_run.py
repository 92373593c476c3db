"""What a job's own run showed, in its user's cache folder, and the comment of the next job of the same script.

The files are the user's own, read as the user is: `gpusage.capture.inside.first_run` wrote them in the job.

Invariants:

1. A record counts only as long as the program's main file is the one that was seen, and while no other run of it showed
   something else.
2. What it says is checked as a comment of the user's own is: it may be forged, by the user alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpusage.capture.captured import check_record
from gpusage.cli.cards.cache import read_own, user_cache
from gpusage.graphs.model_files import read_bounded_file
from gpusage.graphs.reader import CARD_SUFFIX
from gpusage_hooks.comment import parse_model
from gpusage_hooks.errors import GraphError, RequestError
from gpusage_hooks.managers import GpuCatalogue, known_gpu

MAXIMUM_BYTES = 1 << 16
_MAXIMUM_PROGRAM_BYTES = 1 << 24


def runs_folder() -> Path:
    """Return the folder of this user's records."""
    return user_cache() / "runs"


def comment_of_run(
    record: Path, catalogue: GpuCatalogue, files: Mapping[str, Path] = MappingProxyType({})
) -> str | None:
    """Return the comment of a job that runs as *record* shows; ``None`` if there is none, or it no longer holds.

    Args:
        record: Path of the record, less its suffix.
        catalogue: The GPUs, by the names that the comment uses.
        files: What is sent along with the job, by its name there.
    """
    document = _read(record, ".json")
    card = record.with_name(f"{record.name}{CARD_SUFFIX}")
    if not document or document.get("varies") or not card.is_file():
        return None

    # The record is of one version of the program: its main file must still be the one that was seen.
    path = Path(str(document.get("program") or "/"))
    try:
        content = read_bounded_file(str(files.get(path.name, path)), _MAXIMUM_PROGRAM_BYTES)
    except GraphError:
        return None
    if hashlib.sha256(content).hexdigest() != document.get("program_digest"):
        return None

    try:
        words = [check_record(document).comment(str(card)), *_step_time_key(record, document, catalogue)]
        words += [f"first_run={document['job']}"] if document.get("job") else []
        parse_model(",".join(words))
    except RequestError:
        return None
    return ",".join(words)


def _step_time_key(record: Path, document: Mapping[str, Any], catalogue: GpuCatalogue) -> list[str]:
    """Return the key of the step time, if the program of *document* was measured, and none before it."""
    measured = _read(record, ".measured.json")
    if measured.get("program_digest") != document["program_digest"]:
        return []

    step_time_s, name = measured.get("step_time_s"), measured.get("gpu")
    gpu = known_gpu(catalogue, name) if isinstance(name, str) else None
    # A microsecond to hours: anything else is no step of a training.
    if gpu is None or not isinstance(step_time_s, float) or not 1e-6 < step_time_s < 1e4:
        return []
    return [f"step_time={1e3 * step_time_s:.4g}ms@{gpu}"]


def _read(record: Path, suffix: str) -> Mapping[str, Any]:
    content = read_own(record.with_name(f"{record.name}{suffix}"), MAXIMUM_BYTES)
    try:
        document = json.loads(content or b"")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
