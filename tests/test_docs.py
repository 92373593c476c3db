"""The pages say what the code does: every hook with its exact signature, every example as it is run."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from gpusage.cli import main
from gpusage_hooks import specs

DOCS = Path(__file__).resolve().parents[1] / "docs"
LAB_DOCS = DOCS.parent / "lab" / "docs"
CLIENTS = Path(__file__).parent / "clients" / "workloads"
THIRD_PARTY = Path(__file__).parent / "third_party"
HOOKS = {name: hook for name, hook in vars(specs).items() if hasattr(hook, "gpusage_spec")}

Signature = tuple[tuple[tuple[str, str], ...], str]


def sections(page: str) -> dict[str, str]:
    """Return the text below each third-level heading of *page*, by heading."""
    parts = re.split(r"^### (.+)$", page, flags=re.MULTILINE)[1:]
    return {name: text.split("\n## ")[0] for name, text in zip(parts[::2], parts[1::2], strict=True)}


def blocks(text: str) -> list[str]:
    return re.findall(r"^```\w+\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def documented(text: str) -> Signature:
    """Return the signature in the first code block of *text*: names and annotations in order, and what is returned."""
    block = blocks(text)[0]
    (function,) = ast.parse(block).body
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    assert ast.unparse(arguments).count("*") + len(arguments.defaults) + len(arguments.posonlyargs) == 0
    named = tuple((argument.arg, written(argument.annotation)) for argument in arguments.args)
    return named, written(function.returns)


def written(annotation: ast.expr | None) -> str:
    assert annotation is not None
    return ast.unparse(annotation)


def declared(hook: Any) -> Signature:  # a marked function
    signature = inspect.signature(hook)
    named = tuple((name, parameter.annotation) for name, parameter in signature.parameters.items())
    return named, signature.return_annotation


PAGE = sections((DOCS / "plugins.md").read_text(encoding="utf-8"))


def test_every_hook_is_on_the_page_in_the_order_of_the_code_and_no_other() -> None:
    assert list(PAGE) == list(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_documented_with_its_exact_signature(name: str) -> None:
    assert documented(PAGE[name]) == declared(HOOKS[name])
    assert f"def {name}(" in PAGE[name]


@pytest.mark.parametrize("name", HOOKS)
def test_the_page_says_whose_answer_counts(name: str) -> None:
    first = HOOKS[name].gpusage_spec["firstresult"]
    assert PAGE[name].lstrip().startswith("First answer wins." if first else "All answers count.")


@pytest.mark.parametrize(
    "file",
    [
        "site_plugin/pyproject.toml",
        "site_plugin/site_plugin.py",
        "site_plugin/check_it.py",
        "toy_manager/toy_manager.py",
    ],
)
def test_the_example_on_the_page_is_the_one_that_is_run(file: str) -> None:
    """`tests/third_party` builds, installs and runs these files."""
    page = (DOCS / "plugins.md").read_text(encoding="utf-8")
    example = page.split(f"`{file.partition('/')[2]}`:\n", 1)[1]
    assert blocks(example)[0] == (THIRD_PARTY / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "file",
    [
        *("with_submitit.py", "pipeline.nf", "Snakefile", "with_dask_jobqueue.py", "with_parsl.py", "with_psij.py"),
        "with_spark.py",
    ],
)
def test_an_example_of_a_client_is_the_one_that_is_run(file: str) -> None:
    """`tests/clients` runs these files with the programs themselves."""
    example = (DOCS / "clients.md").read_text(encoding="utf-8").split(f"`{file}`:\n", 1)[1]
    assert blocks(example)[0] == (CLIENTS / file).read_text(encoding="utf-8")


PAGES = sorted((*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md"), *LAB_DOCS.glob("*.md")))


def links() -> Iterator[tuple[Path, str, str]]:
    """Yield each relative link of each page: the page, the other one, and the heading's anchor, which may be empty."""
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                yield page, target, anchor


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w -]", "", heading).strip().replace(" ", "-") for heading in plain}


def test_every_link_leads_somewhere() -> None:
    dead = []
    for page, target, anchor in links():
        path = (page.parent / target) if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            dead.append(f"{page.name}: {target}#{anchor}")
    assert dead == []


def commands() -> Iterator[tuple[Path, list[str]]]:
    """Yield the plain words of each command of gpusage in a page's code, in a line or in a block.

    Left out are blocks that a command printed, and the pages that say which commands are gone.
    """
    for page in PAGES:
        if page.name == "CHANGELOG.md" or page.parent.name == "decisions":
            continue
        text = re.sub(r"^<!-- m.*?^<!-- end", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL))
        lines = re.findall(r"^(?:\$ )?(?:\S+/)?gpusage ([a-z][a-z -]*)", fenced, flags=re.MULTILINE)
        for line in (*lines, *re.findall(r"`gpusage ([a-z][a-z -]*)", text)):
            yield page, re.split(r" -| $", line)[0].split()


def test_every_command_on_a_page_exists() -> None:
    unknown = set()
    for page, words in commands():
        group: click.Command = main
        for word in words:
            if not isinstance(group, click.Group):
                break  # the rest are its arguments
            command = group.get_command(click.Context(group), word)
            if command is None:
                unknown.add(f"{page.name}: gpusage {' '.join(words)}")
                break
            group = command
    assert unknown == set()


def test_a_difference_is_seen() -> None:
    """The comparison itself: an argument renamed, an annotation changed."""
    written = (
        "```python\ndef restore_request(job: AnnotatedJob, reason: str, context: Context) -> bool | None: ...\n```\n"
    )
    right = documented(written)
    assert right == declared(specs.restore_request)
    renamed = documented(written.replace("reason", "why"))
    retyped = documented(written.replace("bool | None", "bool"))
    assert right not in (renamed, retyped)


def test_each_page_of_decisions_is_reached_from_its_room_and_from_the_index() -> None:
    folder = DOCS / "decisions"
    pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert [page for page in pages if index.count(f"| [{page}]({page}) |") != 1] == []
    roots = ("hooks", "core", "plugins", "planning", "sandboxes", "lab")
    rooms = [path for root in roots for path in (DOCS.parent / root).rglob("__init__.py")]
    named = {name for path in rooms for name in re.findall(r"docs/decisions/([\w.]+\.md)", path.read_text("utf-8"))}
    assert named == pages


def test_the_pages_of_decisions_stay_short() -> None:
    """Together: a reader of one room reads some minutes."""
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in (DOCS / "decisions").glob("*.md"))
    assert words <= 15_000


@pytest.mark.parametrize(("name", "least"), [("architecture", 40), ("plugins", 5)])
def test_a_page_about_the_code_names_files_that_exist(name: str, least: int) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:hooks|core|plugins|planning|sandboxes|lab|bench|tests)/[\w./-]+)`", page)
    assert len(paths) > least
    assert [path for path in paths if not (DOCS.parent / path).exists()] == []
