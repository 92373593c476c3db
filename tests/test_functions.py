"""Functions stay short: half have at most 6 lines, nine of ten at most 20, none more than 40, docstrings left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("hooks", "core", "plugins", "lab")


def line_counts() -> Iterator[tuple[int, str]]:
    """Yield the lines of each function's body, and where it stands."""
    for path in sorted(path for source in SOURCES for path in (ROOT / source).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
                count = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                yield count, f"{path.relative_to(ROOT)}:{node.name}"


def test_functions_are_short() -> None:
    counts = list(line_counts())
    lines = [count for count, _ in counts]
    assert median(lines) <= 6
    assert quantiles(lines, n=10)[-1] <= 20
    assert [place for count, place in counts if count > 40] == []
