"""Copies of gpusage's programs on a host, out of reach of package managers, and the divisions that a host offers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from gpusage.boundary.edits import Edit, read_text
from gpusage.node.dividing import PROBE, PROGRAM, WALL
from gpusage_hooks.types import LimitedBy

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
_LIMIT_S = 12
"""`gpusage-mps` gives up earlier, where a GPU hangs."""


def plain_python() -> str:
    """Return this Python's path; empty where a shell script would need quotes for it."""
    return sys.executable if _PLAIN.fullmatch(sys.executable) else ""


def node_programs(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield the path in *folder*, the text and the mode of each file that runs on nodes, whoever manages them."""
    for source in (PROGRAM, WALL, PROBE):
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
        limited_by: What can limit a job's memory on this host's GPUs.
        because: Why it is no wall, one clause; empty where it is.
    """

    version: str = ""
    divisions: tuple[str, ...] = ("whole",)
    limited_by: LimitedBy = "none"
    because: str = ""


def host_offers() -> Offers:
    """Return this host's offers; without an answer the host has no MPS."""
    try:
        done = subprocess.run([PROGRAM, "offers"], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Offers()
    return parse_offers(done.stdout)


def parse_offers(text: str) -> Offers:
    """Parse the lines ``NAME VALUE`` of `gpusage-mps offers`; lines with other names do not count."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        values.setdefault(name, []).append(value.strip())

    limited_by = values.get("limited_by", [""])[0]
    return Offers(
        version=values.get("version", [""])[0],
        divisions=tuple(values.get("division", ("whole",))),
        limited_by=next((known for known in get_args(LimitedBy) if known == limited_by), "none"),
        because=values.get("because", [""])[0],
    )
