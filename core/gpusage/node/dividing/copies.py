"""What every workload manager runs of gpusage on a host: copies in one folder, which no package manager replaces."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from gpusage.boundary.edits import Edit, read_text
from gpusage.node.dividing import PROBE, PROGRAM

PYTHON = "gpusage-python"
"""The file's name: runs a module of gpusage's, where there is gpusage."""

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


def plain_python() -> str:
    """Return this Python's path; empty where a script cannot name it as it is."""
    return sys.executable if _PLAIN.fullmatch(sys.executable) else ""


def node_programs(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield the path in *folder*, the text and the mode of each file that runs on nodes, whoever manages them."""
    for source in (PROGRAM, PROBE):
        yield folder / source.name, source.read_text(encoding="utf-8"), 0o755
    yield folder / PYTHON, _PYTHON.format(python=plain_python()), 0o755


def plan_node_programs(folder: Path) -> tuple[Edit, ...]:
    """Return the edits that put these files into *folder*."""
    return tuple(
        Edit(path=path, before=read_text(path), after=text, mode=mode, summary="what nodes run")
        for path, text, mode in node_programs(folder)
    )
