"""Remake the numbers in README and docs: what stands between two marks of a page is what a command prints.

``<!-- made by: COMMAND -->`` begins a block and ``<!-- end -->`` ends it. With ``, from: WORDS`` a block is the part of
the output that begins with the line of these words, up to the part of another block or a heading. A block in a code
fence stays in one. FOLDER in a command is what ``--data`` names. A block ``measured by`` a command tells of the machine
that it ran on, or takes a cluster and half an hour, so it is remade with ``--measured`` alone.

Example: python bench/remake.py --data ../shared/data docs/experiments.md
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PRINTED = ROOT / "build" / "numbers"
"""Where the outputs are kept, so that a remake can go on where it was stopped."""
BLOCK = re.compile(
    r"^<!-- (made|measured) by: ([^\n]+?)(?:, from: ([^\n]+?))? -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE
)
FENCE = "```"
FIGURE = re.compile(r"\d+(?:,\d{3})*\.\d+")
"""A number with decimals: others are too common to be looked for."""
PROGRAMS = {"python": [sys.executable], "gpusage": [sys.executable, "-m", "gpusage.cli"]}


class Block(NamedTuple):
    """What stands between two marks.

    Attributes:
        start: How the first line of its part of the output begins; empty for the first line.
        text: As the page has it.
    """

    page: Path
    is_measured: bool
    command: str
    start: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of *page* in order."""
    return [_block(page, match) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def _block(page: Path, match: re.Match[str]) -> Block:
    way, command, start, text = match.groups()
    return Block(page, way == "measured", command, start or "", text)


def part(output: str, start: str, starts: Sequence[str]) -> str:
    """Return *output*, or its lines from the one that begins with *start* to the next of *starts* or heading."""
    if not start:
        return output.strip("\n")
    lines = output.splitlines()
    first = next((place for place, line in enumerate(lines) if line.startswith(start)), None)
    if first is None:
        message = f"Output must have a line that begins with '{start}'; got none. Change the mark in the page."
        raise click.ClickException(message)
    others = ("## ", *(other for other in starts if other and other != start))
    ends = (place for place, line in enumerate(lines) if place > first and line.startswith(others))
    return "\n".join(lines[first : next(ends, len(lines))]).strip("\n")


def remade(page: Path, outputs: dict[str, str], starts: dict[str, list[str]]) -> str:
    """Return *page* with the blocks of the commands in *outputs* made anew."""

    def anew(match: re.Match[str]) -> str:
        block = _block(page, match)
        if block.command not in outputs:
            return match[0]
        made = part(outputs[block.command], block.start, starts[block.command])
        text = f"{FENCE}\n{made}\n{FENCE}\n" if FENCE in block.text else f"\n{made}\n\n"
        return match[0].replace(f"-->\n{block.text}<!-- end", f"-->\n{text}<!-- end")

    return BLOCK.sub(anew, page.read_text(encoding="utf-8"))


def stale(before: str, after: str) -> list[str]:
    """Return the figures that have left the blocks and still stand in the words beside them."""
    gone = _figures(BLOCK.findall(before)) - _figures(BLOCK.findall(after))
    return sorted(gone & set(FIGURE.findall(BLOCK.sub("", after))))


def _figures(found: Sequence[tuple[str, ...]]) -> set[str]:
    return {figure for block in found for figure in FIGURE.findall(block[-1])}


def printed(command: str, data: Path, *, reuse: bool) -> tuple[str, float]:
    """Return what *command* prints, or printed last time, and the seconds that it took."""
    kept = PRINTED / f"{re.sub(r'[^a-z0-9]+', '-', command.lower())}.txt"
    if reuse and kept.is_file():
        return kept.read_text(encoding="utf-8"), 0.0
    program, *words = shlex.split(command)
    arguments = [*PROGRAMS[program], *(str(data) if word == "FOLDER" else word for word in words)]
    start_s = time.monotonic()
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        message = f"Command '{command}' must end well and print something; got status {done.returncode}: {done.stderr}"
        raise click.ClickException(message)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(done.stdout, encoding="utf-8")
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
@click.argument("pages", type=click.Path(exists=True, path_type=Path, resolve_path=True), nargs=-1)
@click.option("--data", type=click.Path(path_type=Path, resolve_path=True), default=ROOT.parent / "shared" / "data")
@click.option("--only", default="", help="Only blocks whose command contains this.")
@click.option("--check", is_flag=True, help="Write nothing; say which pages differ, and exit with 1 if one does.")
@click.option("--measured", is_flag=True, help="Also what a machine or a cluster is measured for.")
@click.option("--reuse", is_flag=True, help=f"Take what a command printed last time, where {PRINTED.name} has it.")
@click.option("--workers", default=2, show_default=True)
def main(pages: tuple[Path, ...], data: Path, only: str, workers: int, **flags: bool) -> None:
    """Remake *pages*; without any, list the commands of all."""
    of_all = [block for page in PAGES for block in blocks_of(page)]
    if not pages:
        click.echo("\n".join(dict.fromkeys(f"{block.page.relative_to(ROOT)}: {block.command}" for block in of_all)))
        return
    wanted = [block for block in of_all if block.page in pages and only in block.command]
    commands = list(dict.fromkeys(block.command for block in wanted if flags["measured"] or not block.is_measured))
    outputs = dict(outputs_of(commands, data, workers, reuse=flags["reuse"]))
    starts = {command: [block.start for block in of_all if block.command == command] for command in commands}
    changed = [page for page in pages if _written(page, remade(page, outputs, starts), is_check=flags["check"])]
    sys.exit(bool(changed and flags["check"]))


def _written(page: Path, after: str, *, is_check: bool) -> bool:
    """Write *page* where it differs, and say so."""
    before = page.read_text(encoding="utf-8")
    if before == after:
        return False
    click.echo(f"{page.name} {'differs' if is_check else 'is remade'}")
    if old := stale(before, after):
        click.echo(f"  its words still have figures that its blocks have no more: {', '.join(old)}")
    if not is_check:
        page.write_text(after, encoding="utf-8")
    return True


if __name__ == "__main__":
    main()
