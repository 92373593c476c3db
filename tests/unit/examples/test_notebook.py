"""The notebook of examples/ is a valid one, has no outputs of its own, and each of its cells runs."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(source: str, names: dict[str, object]) -> object:
    """Run a cell as a notebook does, and return what its last line is worth."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102 - our own notebook
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307 - as above


def test_each_cell_of_the_notebook_runs_and_shows_something(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    monkeypatch.chdir(EXAMPLES)
    names: dict[str, object] = {}
    pages = 0
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        assert cell.outputs == []
        value = run(cell.source, names)
        assert value is not None or capsys.readouterr().out
        page = getattr(value, "_repr_html_", None)
        pages += page is not None and "<table>" in page()
    assert pages == 3  # several GPUs, the explanation, the share
