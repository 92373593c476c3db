"""Remake the numbers in README and docs: what stands between two marks of a page is what a command prints.

``<!-- made by: COMMAND -->`` begins a block and ``<!-- end -->`` ends it. With ``, from: WORDS`` a block is the part of
the output that begins with the line of these words, up to the part of another block, a heading or a title in bold; from
a heading, it is the whole section. A block in a code fence stays in one. FOLDER in a command is what ``--data`` names.
A block ``measured by`` a command tells of the machine that it ran on, or takes a cluster and half an hour, so it is
remade with ``--measured`` alone.

Example: python bench/remake.py --data ../shared/data lab/docs/experiments.md
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "lab" / "docs").glob("*.md")))
PRINTED = ROOT / "build" / "numbers"
"""Where the outputs are kept, so that a remake can go on where it was stopped."""
BLOCK = re.compile(
    r"^<!-- (made|measured) by: ([^\n]+?)(?:, from: ([^\n]+?))? -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE
)
FENCE, HEADING = "```", "## "
FIGURE = re.compile(r"\d+(?:,\d{3})*\.\d+")
"""A number with decimals: others are too common to be looked for."""
PROGRAMS = {"python": [sys.executable], "gpusage": [sys.executable, "-m", "gpusage.cli"]}


class Block(NamedTuple):
    """What stands between two marks.

    Attributes:
        start: How the first line of its part of the output begins; empty for the first line.
        text: As the page has it.
    """

    way: str
    command: str
    start: str
    text: str


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of *page* in order."""
    return [Block(*match.groups("")) for match in BLOCK.finditer(page)]


def part(output: str, start: str, starts: Sequence[str]) -> str:
    """Return *output*, or its lines from the one that begins with *start* to the next of *starts*, heading or title.

    A part that begins with a heading ends at the next heading alone.
    """
    if not start:
        return output.strip("\n")
    lines = output.splitlines()
    first = next((place for place, line in enumerate(lines) if line.startswith(start)), None)
    if first is None:
        message = f"Output must have a line that begins with '{start}'; got none. Change the mark in the page."
        raise click.ClickException(message)
    others = ("**", "<details", *(other for other in starts if other and other != start))
    ends_at = (HEADING,) if start.startswith(HEADING) else (HEADING, *others)
    ends = (place for place, line in enumerate(lines) if place > first and line.startswith(ends_at))
    return "\n".join(lines[first : next(ends, len(lines))]).strip("\n")


def remade(page: str, outputs: Mapping[str, str], starts: Mapping[str, Sequence[str]]) -> str:
    """Return *page* with the blocks of the commands in *outputs* made anew."""

    def anew(match: re.Match[str]) -> str:
        block = Block(*match.groups(""))
        if block.command not in outputs:
            return match[0]
        made = part(outputs[block.command], block.start, starts[block.command])
        text = f"{FENCE}\n{made}\n{FENCE}\n" if FENCE in block.text else f"\n{made}\n\n"
        return match[0].replace(f"-->\n{block.text}<!-- end", f"-->\n{text}<!-- end")

    return BLOCK.sub(anew, page)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each block that differs, and one for each page whose words have figures of no block any more."""
    gone = _figures(before) - _figures(after)
    for name, page in after.items():
        for old, new in zip(blocks_of(before[name]), blocks_of(page), strict=True):
            if old != new:
                yield f"{name}: {old.command}{old.start and f', from: {old.start}'}"
        if stale := gone & set(FIGURE.findall(BLOCK.sub("", page))):
            yield f"{name}: look at its words: no block has these any more: {', '.join(sorted(stale))}"


def _figures(pages: Mapping[str, str]) -> set[str]:
    return {figure for page in pages.values() for block in blocks_of(page) for figure in FIGURE.findall(block.text)}


def printed(command: str, data: Path, *, reuse: bool) -> tuple[str, float]:
    """Return what *command* prints, or printed last time, and the seconds that it took."""
    cached = PRINTED / f"{re.sub(r'[^a-z0-9]+', '-', command.lower())}.txt"
    if reuse and cached.is_file():
        return cached.read_text(encoding="utf-8"), 0.0
    program, *words = shlex.split(command)
    arguments = [*PROGRAMS[program], *(str(data) if word == "FOLDER" else word for word in words)]
    start_s = time.monotonic()
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        message = f"Command '{command}' must end well and print something; got status {done.returncode}: {done.stderr}"
        raise click.ClickException(message)
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_text(done.stdout, encoding="utf-8")
    return done.stdout, time.monotonic() - start_s


def outputs_of(commands: Sequence[str], data: Path, workers: int, *, reuse: bool) -> Iterator[tuple[str, str]]:
    """Yield each command with its output as they end, and show the seconds that it took."""
    console = Console(stderr=True, highlight=False)
    with Progress(console=console) as bar, ThreadPoolExecutor(workers) as pool:
        task = bar.add_task("numbers", total=len(commands))
        running = {pool.submit(printed, command, data, reuse=reuse): command for command in commands}
        for future in as_completed(running):
            output, took_s = future.result()
            bar.advance(task)
            console.print(f"{took_s:6.0f} s  {running[future]}", soft_wrap=True)
            yield running[future], output


@click.command(help=__doc__)
@click.argument("pages", type=click.Choice([str(page.relative_to(ROOT)) for page in PAGES]), nargs=-1)
@click.option("--data", type=click.Path(path_type=Path, resolve_path=True), default=ROOT.parent / "shared" / "data")
@click.option("--only", default="", help="Only blocks whose command contains this.")
@click.option("--check", is_flag=True, help="Write nothing; say which blocks differ, and exit with 1 if one does.")
@click.option("--measured", is_flag=True, help="Also what a machine or a cluster is measured for.")
@click.option("--reuse", is_flag=True, help="Take what a command printed last time, where build/numbers has it.")
@click.option("--workers", default=2, show_default=True)
def main(pages: tuple[str, ...], data: Path, only: str, workers: int, **flags: bool) -> None:
    """Remake *pages*; without any, list the commands of all."""
    before = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
    of_all = {name: blocks_of(text) for name, text in before.items()}
    if not pages:
        lines = (f"{name}: {block.way} by {block.command}" for name, blocks in of_all.items() for block in blocks)
        click.echo("\n".join(dict.fromkeys(lines)))
        return
    ways = ("made", "measured") if flags["measured"] else ("made",)
    wanted = (block for name in pages for block in of_all[name] if block.way in ways and only in block.command)
    commands = list(dict.fromkeys(block.command for block in wanted))
    outputs = dict(outputs_of(commands, data, workers, reuse=flags["reuse"]))
    starts = {
        command: [one.start for each in of_all.values() for one in each if one.command == command]
        for command in commands
    }
    after = {name: remade(text, outputs, starts) if name in pages else text for name, text in before.items()}
    click.echo("\n".join(changes(before, after)) or "Every block is as its command prints it.")
    if flags["check"]:
        sys.exit(before != after)
    for name in pages:
        (ROOT / name).write_text(after[name], encoding="utf-8")


if __name__ == "__main__":
    main()
