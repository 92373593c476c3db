"""No function is longer than a screen: at most 60 lines, its docstring left out. There is no lower limit.

A rule of ruff that is silenced has its reason on the same line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from sources import DESK, PRODUCT, ROOT, parse, python_files

SOURCES = python_files(*PRODUCT, *DESK)
MOST_LINES = 60
REASON = re.compile(r"# noqa: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)* - \w")


def line_counts() -> Iterator[tuple[int, str]]:
    """Yield the lines of each function's body, and where it stands."""
    for path in SOURCES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
                count = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                yield count, f"{path.relative_to(ROOT)}:{node.name}"


def test_no_function_is_longer_than_a_screen() -> None:
    assert [place for count, place in line_counts() if count > MOST_LINES] == []


def test_a_silenced_rule_has_its_reason() -> None:
    lines = [
        (path, number, line)
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "# noqa" in line
    ]
    assert len(lines) < 100
    unexplained = [f"{path.relative_to(ROOT)}:{number}" for path, number, line in lines if not REASON.search(line)]
    assert unexplained == []
