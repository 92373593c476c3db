"""The extras of gpusage's installation: which library each brings."""

from __future__ import annotations

import re
from collections import Counter
from importlib.metadata import requires

_OF_AN_EXTRA = re.compile(r"([\w.-]+)[^;]*;\s*extra == ['\"]([\w-]+)['\"]")

_EXTRA_OF_COMMAND = {"evaluate": "train"}
"""Where they are not of one name."""


def library_of(module: str) -> str:
    """Return the library that brings *module*, by the name that it is installed by."""
    package = module.partition(".")[0]
    return {"sklearn": "scikit-learn"}.get(package, package)


def extra_with(library: str, command: str = "") -> str | None:
    """Return the extra that brings *library*, that of *command* or else the smallest; ``None`` where none does."""
    pairs = [each.groups() for line in requires("gpusage") or () if (each := _OF_AN_EXTRA.match(line))]
    own = _EXTRA_OF_COMMAND.get(command, command)
    if (library, own) in pairs:
        return own
    sizes = Counter(extra for _, extra in pairs)
    return min((extra for name, extra in pairs if name == library), key=sizes.__getitem__, default=None)
