"""Artifacts: what training leaves for the predictors, as JSON with a card for people."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpusage.predictors import pretrained
from gpusage_hooks.errors import RequestError

FOLDER = Path(pretrained.__file__).parent
SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a reader must know of an artifact.

    Attributes:
        fitted_on: One line a source: file, rows used, what was left out and why.
        licences: Of the sources.
        ranges: What the fitted rows span, by quantity: least and greatest.
        known: What occurs in the fitted rows, by kind.
        errors: What evaluation gave, by split.
        notes: Anything else.
    """

    purpose: str
    fitted_on: tuple[str, ...]
    licences: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file of `FOLDER`; *parameters* is anything that JSON can say."""

    name: str
    card: Card
    parameters: Mapping[str, Any]


def rendered(artifact: Artifact) -> str:
    """Return the file's text, the same for the same figures."""
    document = {"card": rounded(asdict(artifact.card)), "parameters": rounded(artifact.parameters)}
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


def found_at(place: Path, names: Collection[str]) -> dict[str, Path]:
    """Return the artifacts at *place*, an artifact or a folder of some, by name.

    Raises:
        RequestError: There is none of *names*, or one is not an artifact.
    """
    paths = [place / f"{name}.json" for name in names] if place.is_dir() else [place]
    found = {path.stem: path for path in paths if path.is_file() and path.stem in names}
    if not found:
        known = ", ".join(f"{name}.json" for name in names)
        message = f"Artifact '{place}' must be {known}, or a folder with some of these; got none. Name another."
        raise RequestError(message)
    for path in found.values():
        _check(path)
    return found


def _check(path: Path) -> None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        document = None
    if not isinstance(document, dict) or not {"card", "parameters"} <= document.keys():
        message = f"Artifact '{path}' must be JSON with 'card' and 'parameters'; got something else. Train it again."
        raise RequestError(message)


@contextmanager
def reading(paths: Mapping[str, Path]) -> Iterator[None]:
    """Let the predictors read the artifacts *paths*, by name, instead of those that are shipped."""
    before = pretrained.INSTEAD.set({**pretrained.INSTEAD.get(), **paths})
    _forget_what_was_read()
    try:
        yield
    finally:
        pretrained.INSTEAD.reset(before)
        _forget_what_was_read()


def _forget_what_was_read() -> None:
    """Empty the predictors' caches: they hold what was made of the artifacts."""
    for name, module in list(sys.modules.items()):
        if name.startswith("gpusage.predictors."):
            for value in vars(module).values():
                getattr(value, "cache_clear", _nothing)()


def _nothing() -> None:
    return None


def rounded(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can say, and numpy's numbers
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
