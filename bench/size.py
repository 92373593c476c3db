"""How large the house is, beside the budgets that tests/test_size.py holds.

    .venv/bin/python bench/size.py [--json] [--quick]

A line of code is neither blank, nor a comment, nor part of a docstring; Python, Java, Lua and the shell count, tests do
not. A function passes if it runs: `bench/files.py --list` names the files of one submission and of one
command. ``--quick`` leaves out these two and the wheel, which take half a minute.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import click

from gpusage.cli import main as cli
from gpusage.plugins.loading import installed_managers
from gpusage.settings.configuration import SECTIONS
from gpusage_hooks.job_keys import JOB_KEYS

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("core", "hooks", "plugins")
DESK = ("planning", "sandboxes", "lab", "bench")
LONG_BODY_LINES = 8
NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENDMARKER, tokenize.ENCODING),
}
NO_REASON = re.compile(r"#\s*(type:|noqa|ruff:|!)")
"""Comments for a tool and not for a reader."""
SHELL = r"(?<!\S)#[^\n]*"
COMMENTS = {".java": r"/\*.*?\*/|//[^\n]*", ".lua": r"--[^\n]*", ".sh": SHELL, "": SHELL}
"""What is a comment in the other languages; a text that looks like one is rare enough to be counted wrongly.

A program without a suffix is a shell's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one figure may be.

    Attributes:
        limit: The least figure, or the largest.
        at_least: Whether the limit is the least one.
    """

    limit: float
    at_least: bool = False

    def allows(self, figure: float) -> bool:
        """Return whether *figure* is within the budget."""
        return figure >= self.limit if self.at_least else figure <= self.limit


# What the issues 35 to 39 added to each, in this order; a later change pays for its lines there.
BUDGETS = {
    "lines of code: core, hooks, plugins": Budget(limit=41_276 - 681 + 687 + 1_188 + 706 - 427),
    "lines of code: planning, sandboxes, lab, bench": Budget(limit=20_600 - 17 + 273 + 122 + 372 + 1),
    "files above 400 lines": Budget(limit=0),
    "comments per 100 lines": Budget(limit=3, at_least=True),
    "longer bodies with a blank line, %": Budget(limit=40, at_least=True),
    "private functions used once, %": Budget(limit=55),
    "words of docs": Budget(limit=57_000),
    "words of lab/docs": Budget(limit=30_000),
    "sbatch: files": Budget(limit=85),
    "sbatch: functions": Budget(limit=550),
    "gpusage predict: files": Budget(limit=55),
    "gpusage predict: functions": Budget(limit=500),
}
"""Of November 2026; an issue that adds a feature says by how much it may raise one."""


def code_files(*folders: str) -> list[Path]:
    """Return the files of code below *folders* that git knows, tests of the Java left out."""
    listing = subprocess.check_output(("git", "ls-files", *folders), cwd=ROOT, text=True)
    paths = (ROOT / line for line in listing.splitlines() if "/src/test/" not in line)
    return [path for path in paths if path.exists() and (path.suffix == ".py" or path.suffix in COMMENTS)]


def lines_of_code(path: Path) -> int:
    """Return how many lines of the file at *path* are code."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        code = re.sub(COMMENTS[path.suffix], "", source, flags=re.DOTALL)
        return sum(bool(line.strip()) for line in code.splitlines())
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            numbers.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(numbers)


def how_bodies_read(paths: Sequence[Path]) -> dict[str, float]:
    """Return how much the Python files at *paths* explain, and how much they make a reader hop."""
    lines = comments = longer = in_paragraphs = once = private = 0
    for path in paths:
        source = path.read_text(encoding="utf-8")
        texts = source.splitlines()
        tokens = [*tokenize.generate_tokens(io.StringIO(source).readline)]
        names = Counter(token.string for token in tokens if token.type == tokenize.NAME)
        lines += len(texts)
        comments += sum(token.type == tokenize.COMMENT and not NO_REASON.match(token.string) for token in tokens)
        for function in functions_of(ast.parse(source)):
            body = function.body[ast.get_docstring(function, clean=False) is not None :]
            text = texts[body[0].lineno - 1 : function.end_lineno] if body else []
            longer += len(text) >= LONG_BODY_LINES
            in_paragraphs += len(text) >= LONG_BODY_LINES and any(not line.strip() for line in text)
            if function.name.startswith("_") and not function.name.startswith("__"):
                private += 1
                once += names[function.name] <= len(("its definition", "its use"))
    return {
        "comments per 100 lines": round(100 * comments / lines, 1),
        "longer bodies with a blank line, %": round(100 * in_paragraphs / longer),
        "private functions used once, %": round(100 * once / private),
    }


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function in *tree*, methods and inner functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def words(*patterns: str) -> int:
    """Return how many words the pages have that *patterns* name."""
    paths = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def options(command: click.Command) -> int:
    """Return how many options *command* and the commands below it have."""
    count = sum(isinstance(each, click.Option) for each in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        below = [command.get_command(context, name) for name in command.list_commands(context)]
        count += sum(options(each) for each in below if each is not None)
    return count


def wheel_mb() -> float:
    """Return the size of the site's wheel without its jar, built to be measured."""
    with tempfile.TemporaryDirectory() as folder:
        build = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        return round(sum(path.stat().st_size for path in Path(folder).glob("*.whl")) / 1e6, 1)


def measure(*, quick: bool = False) -> dict[str, float]:
    """Return every figure by its name."""
    product, desk = code_files(*PRODUCT), code_files(*DESK)
    python = [path for path in product if path.suffix == ".py"]
    of_managers = [manager.settings for manager in installed_managers().values()]
    figures: dict[str, float] = {
        "lines of code: core, hooks, plugins": sum(map(lines_of_code, product)),
        "lines of code: planning, sandboxes, lab, bench": sum(map(lines_of_code, desk)),
        "files above 400 lines": sum(len(path.read_text("utf-8").splitlines()) > 400 for path in product + desk),
        **how_bodies_read(python),
        "words of docs": words("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md"),
        "words of lab/docs": words("lab/docs/**/*.md"),
        "settings": sum(len(fields(section)) for section in (*SECTIONS.values(), *of_managers)),
        "keys of a job": len(JOB_KEYS),
        "options": options(cli),
    }
    if not quick:
        import files as passed

        for title, counts in passed.measure().items():
            figures[f"{title}: files"] = len(counts)
            figures[f"{title}: functions"] = sum(counts.values())
        figures["wheel of a site without its jar, MB"] = wheel_mb()
    return figures


def main() -> None:
    """Print each figure beside its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--quick", action="store_true", help="only what needs no process and no build")
    options = parser.parse_args()
    figures = measure(quick=options.quick)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, figure in figures.items():
        budget = BUDGETS.get(name)
        bound = f"{'>=' if budget.at_least else '<='} {budget.limit:,}" if budget else ""
        verdict = "" if budget is None or budget.allows(figure) else "missed"
        print(f"{name:48} {figure:>9,} {bound:>10} {verdict}".rstrip())


if __name__ == "__main__":
    main()
