"""Copies of gpusage's programs on a host, out of reach of package managers, and the divisions that a host offers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpusage.boundary.edits import Edit, read_text
from gpusage.node.dividing import PROBE, PROGRAM

PYTHON = "gpusage-python"
"""Name of the program that runs a module of gpusage, if gpusage is there."""

_PLAIN = re.compile(r"[\w/.+@:~-]+")
_PYTHON = """\
#!/bin/sh
# Runs a module of gpusage's: "gpusage-python MODULE ARGUMENT...". Where no Python has gpusage any more, it does nothing
# and ends well: what calls it must not name a file that an upgrade or a removal of gpusage takes away.
python=${{GPUSAGE_PYTHON:-{python}}}
cd / || exit 0 # Python looks for modules where it starts
[ -x "$python" ] && "$python" -c 'import gpusage' 2>/dev/null || exit 0
exec "$python" -m "$@"
"""
_LINE_WORDS = 2
_LIMIT_S = 12
"""`gpusage-mps` gives up earlier, where a GPU hangs."""


def plain_python() -> str:
    """Return this Python's path; empty where a shell script would need quotes for it."""
    return sys.executable if _PLAIN.fullmatch(sys.executable) else ""


def node_programs(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield the path in *folder*, the text and the mode of each file that runs on nodes, whoever manages them."""
    for source in (PROGRAM, PROBE):
        yield folder / source.name, source.read_text(encoding="utf-8"), 0o755
    yield folder / PYTHON, _PYTHON.format(python=plain_python()), 0o755


def plan_node_programs(folder: Path) -> tuple[Edit, ...]:
    """Return the edits that write the programs of a node into *folder*."""
    return tuple(
        Edit(path=path, before=read_text(path), after=text, mode=mode, summary="what nodes run")
        for path, text, mode in node_programs(folder)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """Divisions of GPUs that a host offers.

    Attributes:
        version: Version of the MPS control daemon, for example ``13010``; empty if unknown.
        divisions: Names of `Division`; ``whole`` alone where the host has no MPS.
    """

    version: str = ""
    divisions: tuple[str, ...] = ("whole",)


def host_offers() -> Offers:
    """Return this host's offers; without an answer the host has no MPS."""
    try:
        done = subprocess.run([PROGRAM, "offers"], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Offers()
    return parse_offers(done.stdout)


def parse_offers(text: str) -> Offers:
    """Parse the lines ``version N`` and ``division NAME`` of `gpusage-mps offers`; other lines do not count."""
    lines = [line.split() for line in text.splitlines()]
    version = next((words[1] for words in lines if words[:1] == ["version"] and len(words) == _LINE_WORDS), "")
    divisions = tuple(words[1] for words in lines if words[:1] == ["division"] and len(words) == _LINE_WORDS)
    return Offers(version=version, divisions=divisions or ("whole",))
