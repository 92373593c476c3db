"""A command without a model: the record of an earlier run, and the variables by which this run shows its model.

The record lies in the user's cache folder, at a path that the nodes must see too.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpusage.capture import ON_START
from gpusage.cli.cards.first_run import comment_of_run, runs_folder
from gpusage.settings.configuration import CaptureMode
from gpusage_hooks.comment import parse_first_run, parse_model
from gpusage_hooks.managers import GpuCatalogue
from gpusage_hooks.types import ModelRequest

_MAXIMUM_BYTES = 1 << 24
_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_\d+_\d+")


def record_of(line: str, files: Sequence[Path], mode: CaptureMode, *, learns: bool | None) -> Path | None:
    """Return the folder where runs of the command *line* with *files* write; ``None`` if they may not.

    Args:
        line: As bash reads it.
        files: What is sent along; their content counts, not their paths.
        mode: The site's.
        learns: What the user says; ``None`` if that is nothing.
    """
    wanted = mode == "all" if learns is None else learns
    if mode == "off" or not wanted:
        return None

    # A changed script is another command, and may build another model.
    digest = hashlib.sha256(line.encode("utf-8", "replace"))
    for path in files:
        digest.update(f"\0{path.name}\0".encode("utf-8", "replace"))
        with suppress(OSError), path.open("rb") as file:
            digest.update(file.read(_MAXIMUM_BYTES))
    return runs_folder() / digest.hexdigest()[:20]


def request_of(record: Path, files: Sequence[Path], catalogue: GpuCatalogue) -> ModelRequest | None:
    """Return the request by earlier runs, maybe without a model; ``None`` if there are none, or they no longer hold."""
    comment = comment_of_run(record, catalogue, {path.name: path for path in files})
    if not comment:
        return None
    request = parse_first_run(comment) or parse_model(comment)
    return replace(request, first_run=_CONTAINER.sub(r"application_\1", request.first_run))


def with_observation(variables: Sequence[tuple[str, str]], record: Path) -> tuple[tuple[str, str], ...]:
    """Return the command's *variables* and the ones by which its Python shows the model."""
    own = dict(variables)
    paths = [str(ON_START), *filter(None, [own.get("PYTHONPATH", "")])]

    # Python runs the sitecustomize of the first folder on its path.
    ours = {"GPUSAGE_LEARN": str(record), "GPUSAGE_LEARN_JOB": "CONTAINER_ID"}
    return tuple({**own, "PYTHONPATH": os.pathsep.join(paths), **ours}.items())
