"""Learned figures as plain JSON: what a predictor reads at prediction time, each file with its card.

Invariants:

1. Nothing but the standard library reads them; nothing is ever unpickled.
2. The same fit gives the same bytes: keys sorted, figures rounded to six digits.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=16)
def load(name: str) -> dict[str, Any]:
    """Return what was learned for *name*: ``card`` for people, ``parameters`` for the predictor."""
    text = files("gpusage.predictors.pretrained").joinpath(f"{name}.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
