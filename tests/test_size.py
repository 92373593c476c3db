"""The house stays within its budgets: `python bench/size.py` prints every figure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benches import load_bench
from sources import ROOT
from waiting import LIMIT_S

size = load_bench("size")


def test_every_figure_is_within_its_budget() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "bench" / "size.py", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    figures = json.loads(run.stdout)
    assert size.BUDGETS.keys() <= figures.keys()
    missed = {name: figures[name] for name, budget in size.BUDGETS.items() if not budget.allows(figures[name])}
    assert missed == {}


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("a.py", '"""Text."""\n\nx = 1  # why\n# why\n', 1),
        ("a.py", 'def f():\n    """Text\n    of two lines.\n    """\n    return (\n        1\n    )\n', 4),
        ("a.py", 'x = """a\nb"""\n', 2),  # no docstring: a text of the program
        ("A.java", "/** Text\n * of two lines. */\nint a; // why\n\n", 1),
        ("a.lua", "-- why\nlocal a = 1 -- why\n", 1),
        ("a.sh", "#!/bin/sh\necho 1\n", 1),
    ],
)
def test_lines_of_code_leave_out_blanks_comments_and_docstrings(
    tmp_path: Path, name: str, source: str, expected: int
) -> None:
    path = tmp_path / name
    path.write_text(source, encoding="utf-8")
    assert size.lines_of_code(path) == expected


def test_a_function_that_is_called_once_is_counted_as_one(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    twice, longer = "def _twice(): pass\n_twice()\n_twice()\n", "def f():\n" + "    pass\n" * 8
    path.write_text(f"def _once(): pass\n_once()\n{twice}{longer}", encoding="utf-8")
    figures = size.how_bodies_read([path])
    assert figures["private functions used once, %"] == 50
    assert figures["longer bodies with a blank line, %"] == 0
