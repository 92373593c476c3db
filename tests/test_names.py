"""Identifiers use the words of the field: nouns for values, verbs with an object for functions, no private words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOTS = ("hooks", "core", "plugins", "sandboxes", "lab", "tests", "bench", "examples")
BANNED = frozenset(
    {
        *("said", "told", "tell", "tells", "asked", "answered", "found", "given", "kept"),
        *("believed", "wish", "judge", "judged", "ruling", "look", "looks", "take", "takes", "beside"),
        *("door", "letter", "letters", "aftercare", "rival", "rivals", "sighting", "sightings", "bells", "heights"),
    }
)
"""Participles of speech, verbs without an object, and metaphors that only this project's authors would understand."""
PUBLIC = frozenset({"by_rivals", "tell_jobs"})
"""Keys of gpusage.toml, which sites have written down: `[generation] by_rivals` and `[slurm] tell_jobs`."""


def words(identifier: str) -> set[str]:
    """Return the words of *identifier*, split at underscores and capitals, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Yield each name that *tree* defines: of functions, classes, arguments, variables, attributes and imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("test_"):  # a test's name is its sentence
                yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def banned_names(path: Path) -> set[str]:
    """Return the names of the module at *path*, its own included, that have a banned word and are not public."""
    names = {path.parent.name if path.stem == "__init__" else path.stem} if not path.stem.startswith("test_") else set()
    names.update(identifiers(ast.parse(path.read_text(encoding="utf-8"))))
    return {name for name in names - PUBLIC if words(name) & BANNED}


def test_no_identifier_has_a_banned_word() -> None:
    paths = (path for root in ROOTS for path in (ROOT / root).rglob("*.py") if ".venv" not in path.parts)
    assert [f"{path.relative_to(ROOT)} {name}" for path in paths for name in sorted(banned_names(path))] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("told = 1", {"told"}),
        ("def take(x): pass", {"take"}),
        ("def f(kept_off): pass", {"kept_off"}),
        ("class FoundMark: pass", {"FoundMark"}),
        ("self.asked = 1", {"asked"}),
        ("for each, said in x: pass", {"said"}),
        ("import a as letter", {"letter"}),
        ("def test_what_is_told(): pass", set()),
        ("retold = foundation = takeover = 1", set()),
        ("x = told()", set()),
    ],
)
def test_a_banned_word_is_seen_where_a_name_is_defined(source: str, expected: set[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert banned_names(path) == expected
