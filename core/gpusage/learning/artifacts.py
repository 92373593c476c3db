"""Artifacts: what training leaves for the predictors, as JSON with a card for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "predictors" / "pretrained"
SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a reader must know of an artifact.

    Attributes:
        fitted_on: One line a source: file, rows used, what was left out and why.
        licences: Of the sources.
        ranges: What the fitted rows span, by quantity: least and greatest.
        errors: What evaluation gave, by split.
        notes: Anything else.
    """

    purpose: str
    fitted_on: tuple[str, ...]
    licences: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
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


def write(artifact: Artifact, folder: Path = FOLDER) -> Path:
    """Write the artifact, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{artifact.name}.json"
    path.write_text(rendered(artifact), encoding="utf-8")
    return path


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
