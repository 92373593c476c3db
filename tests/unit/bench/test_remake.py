"""`bench/remake.py`: what it puts between the marks of a page, and that every mark of our pages names what there is."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from benches import load_bench
from gpusage.cli import main
from gpusage_lab.seeds.command import command_of

ROOT = Path(__file__).resolve().parents[3]
PAGES_WITH_BLOCKS = ("accuracy", "experiments", "simulator", "published")
"""Of lab/docs."""


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_bench("remake")


def test_a_block_is_made_anew_and_all_else_is_left_as_it_was(bench: ModuleType) -> None:
    mark, other = "<!-- made by: python one.py, from: Second -->", "<!-- measured by: python two.py -->"
    page = f"Before 1.5.\n\n{mark}\n```\nSecond\n1.5\n```\n<!-- end -->\n\n{other}\n3\n<!-- end -->\nAfter.\n"
    output = "First\n0.5\n\nSecond, longer\n2.5\n\nThird\n"
    after = bench.remade(page, {"python one.py": output}, {"python one.py": ["Second", "Third"]})
    assert after == page.replace("Second\n1.5\n", "Second, longer\n2.5\n")
    assert list(bench.changes({"a.md": page, "b.md": "1.5, 3.5"}, {"a.md": after, "b.md": "1.5, 3.5"})) == [
        "a.md: python one.py, from: Second",
        "a.md: look at its words: no block has these any more: 1.5",
        "b.md: look at its words: no block has these any more: 1.5",
    ]


def test_a_part_ends_at_a_heading_and_without_words_it_is_the_whole_output(bench: ModuleType) -> None:
    output = "## One\n\n| a |\n\n## Two\n"
    assert bench.part(output, "| a", ["| a", ""]) == "| a |"
    assert bench.part(output, "", ["| a", ""]) == output.strip()
    with pytest.raises(Exception, match="begins with 'none'; got none"):
        bench.part(output, "none", [])


def test_a_part_that_begins_with_a_heading_is_its_whole_section(bench: ModuleType) -> None:
    output = "## One\n\nFirst\n\n**Bold**\n\n| a |\n\n## Two\n"
    assert bench.part(output, "## One", ["## One", "First", "| a"]) == output.partition("\n\n## Two")[0]
    assert bench.part(output, "First", ["## One", "First", "| a"]) == "First"


def test_every_mark_names_a_command_that_exists_with_its_options_and_how_its_block_begins(bench: ModuleType) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in bench.PAGES)
    blocks = bench.blocks_of(text)
    assert [block.start for block in blocks if not block.text.lstrip("`\n").startswith(block.start)] == []
    assert len(blocks) == text.count("\n<!-- made by: ") + text.count("\n<!-- measured by: ") >= 20
    for command in {block.command for block in blocks}:
        program, script, *words = shlex.split(command)
        known = options_of_gpusage(script) if program == "gpusage" else options_of_a_script(ROOT / script)
        assert [word for word in words if word.startswith("--") and word not in known] == [], command


def test_what_readme_and_the_contents_of_the_experiments_repeat_stands_in_a_block(bench: ModuleType) -> None:
    readme, accuracy, experiments, simulator, published = (
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("README.md", *(f"lab/docs/{page}.md" for page in PAGES_WITH_BLOCKS))
    )
    blocks = "".join(block.text for block in bench.blocks_of(accuracy + experiments + simulator + published))
    known = {float(figure) for figure in bench.FIGURE.findall(blocks)}
    figures_of_readme = bench.FIGURE.findall(readme.partition("\n## How good it is\n")[2])
    repeated = figures_of_readme + bench.FIGURE.findall(experiments.partition("\n## ")[0])
    assert len(figures_of_readme) >= 4
    assert [figure for figure in repeated if not known & {float(figure), round(float(figure) / 100, 4)}] == []


def test_readme_shows_the_answer_that_its_first_job_gets(tmp_path: Path) -> None:
    command, answer = (ROOT / "README.md").read_text(encoding="utf-8").partition("$ sbatch ")[2].splitlines()[:2]
    comment = command.split()[0].replace("model=", f"model={ROOT}/examples/models/")
    script = tmp_path / "serve.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH {comment}\n#SBATCH --gres=gpu:1\n")
    shown = CliRunner().invoke(main, ["validate", str(script)]).output
    assert [part for part in answer.removeprefix("gpusage: ").split(" | ")[:-1] if part not in shown] == []


def options_of_gpusage(name: str) -> str:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command.get_help(click.Context(command))


def options_of_a_script(path: Path) -> str:
    """Its own text and that of the command that the experiments share: to run it would take seconds."""
    return path.read_text(encoding="utf-8") + inspect.getsource(command_of)
