"""Artifacts: what training leaves for the predictors, as JSON with a card for people."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpusage.predictors.artifacts import ACTIVE_ARTIFACTS, PRETRAINED_FOLDER, Card, Parameters, Pretrained, pretrained
from gpusage_hooks.errors import RequestError

FOLDER = PRETRAINED_FOLDER
SIGNIFICANT_DIGITS = 6
"""Of each figure in an artifact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file of `FOLDER`."""

    name: str
    card: Card
    parameters: Parameters


def rendered(artifact: Artifact) -> str:
    """Return the file's text, the same for the same figures."""
    document = {"card": rounded(asdict(artifact.card)), "parameters": rounded(asdict(artifact.parameters))}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def check_writable(folder: Path) -> None:
    """See that files can be put into *folder*, which is made where it is not there: before minutes are spent on them.

    Raises:
        RequestError: They cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        message = f"Folder '{folder}' must be writable; got: {error.strerror}. Name another with --output."
        raise RequestError(message) from error


def write(artifact: Artifact, folder: Path = FOLDER) -> Path:
    """Write the artifact, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{artifact.name}.json"
    path.write_text(rendered(artifact), encoding="utf-8")
    return path


@contextmanager
def reading(paths: Mapping[str, Path]) -> Iterator[None]:
    """Let the predictors read the artifacts *paths*, by name, instead of those that are shipped."""
    before = ACTIVE_ARTIFACTS.set(Pretrained({**pretrained().overrides, **paths}))
    try:
        yield
    finally:
        ACTIVE_ARTIFACTS.reset(before)


def rounded(value: Any) -> Any:  # whatever JSON can say, and numpy's numbers
    """Return *value* with every float cut to six significant digits, and numpy's types turned into Python's."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, Mapping):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value
