"""The project's own Python files, each parsed once for all the tests of a process that read code."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("hooks", "core", "plugins")
"""What a site installs; a folder of sources each, at the top of the repository."""
DESK = ("planning", "sandboxes", "lab")
"""What the second wheel has."""


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """Return the Python files below *folders* of the repository, those of a virtual environment left out."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return tuple(path for path in paths if ".venv" not in path.parts)


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of the file at *path*; nobody changes it."""
    return ast.parse(path.read_text(encoding="utf-8"))
