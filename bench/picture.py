"""Draw the rooms of core, with the contract and the plugins, from their imports: docs/architecture.svg.

    .venv/bin/python bench/picture.py [--check]

A room stands one row above the highest room that it imports, so all arrows point down. An arrow that a longer way
already implies is left out. With --check nothing is written, and a picture that is out of date ends with 1.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from html import escape
from math import fsum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
PACKAGES = {
    "gpusage_hooks": ROOT / "hooks" / "gpusage_hooks",
    "gpusage": ROOT / "core" / "gpusage",
    "gpusage_slurm": ROOT / "plugins" / "slurm" / "gpusage_slurm",
    "gpusage_yarn": ROOT / "plugins" / "yarn" / "gpusage_yarn",
    "gpusage_planning": ROOT / "planning" / "gpusage_planning",
    "gpusage_sandboxes": ROOT / "sandboxes" / "gpusage_sandboxes",
    "gpusage_lab": ROOT / "lab" / "gpusage_lab",
}
NAMES = {
    "gpusage_hooks": "hooks: the contract",
    "gpusage_slurm": "plugins/slurm",
    "gpusage_yarn": "plugins/yarn",
    "gpusage_planning": "planning",
    "gpusage_sandboxes": "sandboxes",
    "gpusage_lab": "lab",
}
STYLE = 'font-family="sans-serif" font-size="13" role="img"'
ARROW_TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8Z" fill="#888"/></marker>'
)
BOX_WIDTH, BOX_HEIGHT, GAP, ROW_HEIGHT, MARGIN = 128, 38, 18, 84, 20


def room_of(module: str) -> str | None:
    """Return the room that *module* stands in: a package of core, or another source root as a whole."""
    package, _, rest = module.partition(".")
    if package not in PACKAGES:
        return None
    if package != "gpusage":
        return package
    room = rest.partition(".")[0]
    return room if (PACKAGES["gpusage"] / room / "__init__.py").exists() and room else None


def imported_modules(path: Path) -> Iterator[str]:
    """Yield what the file at *path* imports, for type checkers and inside functions as well."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def read_imports() -> dict[str, set[str]]:
    """Return the rooms that each room imports."""
    rooms: dict[str, set[str]] = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            relative = path.relative_to(folder).with_suffix("")
            room = room_of(".".join((package, *relative.parts)))
            if room is not None:
                targets = {target for module in imported_modules(path) if (target := room_of(module))}
                rooms.setdefault(room, set()).update(targets - {room})
    return rooms


def without_implied(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return *imports* without the arrows that a longer way implies."""
    below: dict[str, set[str]] = {}
    for room in TopologicalSorter(imports).static_order():
        below[room] = set().union(*(below[target] | {target} for target in imports[room]))
    return {
        room: {target for target in targets if not any(target in below[other] for other in targets)}
        for room, targets in imports.items()
    }


def rows_of(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the rooms by row, the lowest first; each is placed near the middle of those that it imports."""
    levels: dict[str, int] = {}
    for room in TopologicalSorter(imports).static_order():
        levels[room] = max((levels[target] + 1 for target in imports[room]), default=0)
    rows: list[list[str]] = [[] for _ in range(max(levels.values()) + 1)]
    places: dict[str, float] = {}
    for room in sorted(levels, key=lambda room: (levels[room], room)):
        rows[levels[room]].append(room)
    for row in rows:
        # `fsum` is the same in every order, and a set has another in each process.
        row.sort(key=lambda room: (fsum(places.get(t, 0.5) for t in imports[room]) / max(len(imports[room]), 1), room))
        places.update({room: (index + 1) / (len(row) + 1) for index, room in enumerate(row)})
    return rows


def draw(imports: Mapping[str, set[str]]) -> str:
    """Return the picture as SVG."""
    arrows = without_implied(imports)
    rows = rows_of(imports)
    width = MARGIN * 2 + max(len(row) for row in rows) * (BOX_WIDTH + GAP) - GAP
    height = MARGIN * 2 + len(rows) * ROW_HEIGHT - (ROW_HEIGHT - BOX_HEIGHT)
    corners: dict[str, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        left = (width - len(row) * (BOX_WIDTH + GAP) + GAP) / 2
        for index, room in enumerate(row):
            corners[room] = (left + index * (BOX_WIDTH + GAP), height - MARGIN - BOX_HEIGHT - level * ROW_HEIGHT)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {STYLE}>',
        "<title>The rooms of gpusage: each imports the rooms that its arrows point to</title>",
        f"<defs>{ARROW_TIP}</defs>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
    ]
    for room in sorted(arrows):
        x, y = corners[room]
        for target in sorted(arrows[room]):
            to_x, to_y = corners[target]
            lines.append(
                f'<line x1="{x + BOX_WIDTH / 2:.0f}" y1="{y + BOX_HEIGHT:.0f}" x2="{to_x + BOX_WIDTH / 2:.0f}" '
                f'y2="{to_y:.0f}" stroke="#aaa" marker-end="url(#tip)"/>'
            )
    for room, (x, y) in sorted(corners.items()):
        fill, middle = "#e8f0fe" if room not in NAMES else "#fef3e0", x + BOX_WIDTH / 2
        place = f'x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"'
        lines.append(f'<rect {place} rx="5" fill="{fill}" stroke="#556"/>')
        name = escape(NAMES.get(room, room))
        lines.append(f'<text x="{middle:.0f}" y="{y + 24:.0f}" text-anchor="middle">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Write the picture, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if the picture is out of date")
    options = parser.parse_args()
    picture = draw(read_imports())
    if not options.check:
        PICTURE.write_text(picture, encoding="utf-8")
    elif picture != PICTURE.read_text(encoding="utf-8"):
        sys.exit("docs/architecture.svg is out of date: run bench/picture.py.")


if __name__ == "__main__":
    main()
