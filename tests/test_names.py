"""Identifiers use the words of the field: nouns for values, verbs with an object for functions, no private words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from sources import DESK, PRODUCT, ROOT, parse, python_files

ROOTS = (*PRODUCT, *DESK, "tests", "bench", "examples")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BANNED = frozenset(
    {
        *("said", "told", "tell", "tells", "asked", "answered", "found", "given", "kept"),
        *("believed", "wish", "judge", "judged", "ruling", "look", "looks", "take", "takes", "beside"),
        *("door", "letter", "letters", "aftercare", "rival", "rivals", "sighting", "sightings", "bells", "heights"),
    }
)
"""Participles of speech, verbs without an object, and metaphors that only this project's authors would understand."""
VAGUE = frozenset(
    {
        *(
            "alone",
            "answer",
            "apart",
            "doubt",
            "give",
            "go_on",
            "goes_on",
            "has",
            "hear",
            "hold",
            "holds",
            "known",
            "let_go",
        ),
        *("made", "say", "seen", "shown", "some", "together", "turn", "turns", "wanted", "way", "ways", "whole"),
    }
)
"""Functions and classes of these names, with or without ``_`` before them, do not say what they do or are."""
LIBRARIES = frozenset({"AttributeNotFoundException", "NoClassDefFoundError"})
"""Names of the libraries that our programs in Java use."""
OTHER_LANGUAGES = {
    "lua": r"--[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
    "java": r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|@(?:Parameterized)?Test\b.*?void \w+",
    "sh": r"(?<!\S)#[^\n]*",
}
"""By the endings of files: what is no identifier there, comments, texts, and the names of tests."""


@cache
def words(identifier: str) -> frozenset[str]:
    """Return the words of *identifier*, split at underscores and capitals, in lower case."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier))


def identifiers(node: ast.AST) -> Iterator[str]:
    """Yield each name that *node* itself defines: of a function, class, argument, variable, attribute or import."""
    if isinstance(node, DEFINITIONS):
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


def banned_names(module: str, tree: ast.AST) -> set[str]:
    """Return the names of *tree*, and *module*, its own, that have a banned word or say nothing."""
    names = set() if module.startswith("test_") else {module}
    vague = set()

    # One walk for both rules: the scan reads every file of the repository.
    for node in ast.walk(tree):
        names.update(identifiers(node))
        if isinstance(node, DEFINITIONS) and node.name.strip("_").lower() in VAGUE and not is_property(node):
            vague.add(node.name)
    return {name for name in names if words(name) & BANNED} | vague


def is_property(node: ast.AST) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(isinstance(each, ast.Name) and each.id == "property" for each in decorators)


def banned_names_elsewhere(path: Path) -> set[str]:
    """Return the identifiers with a banned word in the program at *path*, in Lua, Java or the shell's language."""
    ending = path.suffix.removeprefix(".")
    code = re.sub(OTHER_LANGUAGES[ending], "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    # A script of the shell consists of words; only what it assigns and defines is a name of ours.
    pattern = r"(?:^|[;\s({])([A-Za-z_]\w*)(?:=|\+\+|\(\)| in )" if ending == "sh" else r"([A-Za-z_]\w*)"
    return {name for name in {*re.findall(pattern, code)} - LIBRARIES if words(name) & BANNED}


def test_no_identifier_has_a_banned_word() -> None:
    reported = []
    for path in python_files(*ROOTS):
        module = path.parent.name if path.stem == "__init__" else path.stem
        reported += [f"{path.relative_to(ROOT)} {name}" for name in sorted(banned_names(module, parse(path)))]
    assert reported == []


@pytest.mark.parametrize("ending", OTHER_LANGUAGES)
def test_no_identifier_in_another_language_has_a_banned_word(ending: str) -> None:
    files = [path for root in (*ROOTS, "release") for path in (ROOT / root).rglob(f"*.{ending}")]
    paths = [path for path in files if not {".venv", "target"} & {*path.parts}]
    assert paths
    assert [f"{path.relative_to(ROOT)} {name}" for path in paths for name in sorted(banned_names_elsewhere(path))] == []


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
        ("def _answer(): pass", {"_answer"}),
        ("class Known: pass", {"Known"}),
        ("known = answer = 1", set()),
    ],
)
def test_a_banned_word_is_seen_where_a_name_is_defined(source: str, expected: set[str]) -> None:
    assert banned_names("module", ast.parse(source)) == expected


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("a.lua", "local found = 1 -- told\nlog(\"asked\", 'kept')", {"found"}),
        ("A.java", "/** told */ int asked = 1; // kept", {"asked"}),
        ("A.java", '@Test\n  void aPingIsAnswered() { log("told \\" kept"); }', set()),
        ("a.sh", "given=1 # told\necho said", {"given"}),
        ("a.sh", "for found in 1; do told() { :; }; done", {"found", "told"}),
    ],
)
def test_a_banned_word_is_seen_in_another_language(name: str, source: str, expected: set[str], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(source, encoding="utf-8")
    assert banned_names_elsewhere(path) == expected


def stale_names(node: ast.AST, known: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the names that docstrings at and below *node* give to arguments or attributes that do not exist.

    *known* are the arguments of the functions around *node*.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        known |= {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        named = re.findall(r"(?<![\w*])\*([a-z_]\w*)\*(?![\w*])", ast.get_docstring(node) or "")
        yield from (name for name in named if not known & {name, f"_{name}"})
    elif isinstance(node, ast.ClassDef):
        _, _, section = (ast.get_docstring(node) or "").partition("\nAttributes:\n")
        named = re.findall(r"^ {4}(\w+): ", section.partition("\n\n")[0], flags=re.MULTILINE)
        body = "\n".join(map(ast.unparse, node.body[1:])) if named else ""
        yield from (name for name in named if not re.search(rf"\b{name}\b", body))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):  # only a statement can hold a function or a class
            yield from stale_names(child, known)


def test_a_docstring_names_arguments_and_attributes_that_exist() -> None:
    paths = python_files(*ROOTS)
    assert [f"{path.relative_to(ROOT)} {name}" for path in paths for name in sorted(stale_names(parse(path)))] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('def f(a):\n    """Return *b*."""', {"b"}),
        ('def f(a):\n    """Return *a* and **b**."""', set()),
        ('def f(a):\n    def g():\n        """Return *a*."""', set()),
        ('class C:\n    """One.\n\n    Attributes:\n        b: Of it.\n    """\n\n    a: int', {"b"}),
        ('class C:\n    """One.\n\n    Attributes:\n        a: Of it.\n    """\n\n    a: int', set()),
    ],
)
def test_a_stale_name_is_seen_in_a_docstring(source: str, expected: set[str]) -> None:
    assert {*stale_names(ast.parse(source))} == expected
