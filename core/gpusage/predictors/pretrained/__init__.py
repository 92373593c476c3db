"""Learned figures as plain JSON: what a predictor reads at prediction time, each file with its card.

Invariants:

1. Nothing but the standard library reads them; nothing is ever unpickled.
2. The same fit gives the same bytes: keys sorted, figures rounded to six digits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

INSTEAD: ContextVar[Mapping[str, Path]] = ContextVar("artifacts read instead", default=MappingProxyType({}))
"""Files that are read instead of the shipped ones: see `gpusage_lab.learning.artifacts.reading`, which sets it."""


@lru_cache(maxsize=16)
def load(name: str) -> dict[str, Any]:
    """Return what was learned for *name*: ``card`` for people, ``parameters`` for the predictor."""
    path = INSTEAD.get().get(name) or files("gpusage.predictors.pretrained").joinpath(f"{name}.json")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
