"""`bench/accuracy.py`: what it prints, and what lab/docs/accuracy.md and README have of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MEMORY = {
    "title": "Memory: measured peaks of training, flat and impossible rows left out",
    "columns": ["predictor", "MAPE %", "median %", "above high %", "coverage %"],
    "rows": [["gpusage, unseen families", 4.0, 3.5, 0.5, 96.0], ["boosting", 5.5, 3.0, None, None]],
    "notes": ["Rows of a test."],
}


def printed(folder: Path, targets: dict[str, list[dict[str, Any]]]) -> str:
    """Return what the script prints of what was evaluated."""
    actual = folder / "evaluated.json"
    actual.write_text(json.dumps({"targets": targets}))
    command = [sys.executable, ROOT / "bench" / "accuracy.py", "--json", actual]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def tables_of(text: str) -> list[dict[str, list[str]]]:
    """The cells of each table of goals, by figure."""
    tables = (part.partition("\n\n")[0].splitlines()[2:] for part in text.split("| figure | goal |")[1:])
    return [{row[0]: row[1:] for row in map(cells_of, lines)} for lines in tables]


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_page_has_the_goals_and_every_table(tmp_path: Path) -> None:
    text = printed(tmp_path, {"memory": [MEMORY]})
    assert text.startswith("## Against the goals\n")
    assert "Rows of a test." in text


def test_a_goal_is_met_or_missed_by_its_bounds_with_the_best_rival_beside_it_and_where_no_table_is_it_says_so(
    tmp_path: Path,
) -> None:
    text = printed(tmp_path, {"memory": [MEMORY]})
    main, others = tables_of(text)
    actual = main | others
    assert actual["memory, family unseen: MAPE %"] == ["\u2264 5", "4.0", "5.5 (boosting)", "met"]
    assert actual["memory, family unseen: median %"] == ["\u2264 3", "3.5", "3.0 (boosting)", "**missed**"]
    assert actual["memory, more than the high end: % of rows"] == ["\u2264 1", "0.5", "", "met"]
    assert actual["memory, inside the 90 % interval, %"] == ["85 to 95", "96.0", "", "**missed**"]
    assert actual["utilization of random networks, kind unseen: RMSLE"] == ["< plainer", "no table", "", ""]
    assert f"Goals met: 2 of {len(actual)}. Of the {len(main)} main figures 2, of the {len(others)} others 0." in text


def test_a_goal_that_no_graph_reaches_has_its_ceiling_beside_it(tmp_path: Path) -> None:
    table = {
        "title": "Utilization of real models",
        "columns": ["source", "rank correlation"],
        "rows": [["Lucid, training, from the graph", 0.5], ["Lucid, training, ceiling of graphs", 0.55]],
        "notes": [],
    }
    main, _ = tables_of(printed(tmp_path, {"activity": [table]}))
    goal = main["utilization of real models, Lucid, from the graph: rank correlation"]
    assert goal[-1] == "**missed**; a graph tells at most 0.55"


def test_each_family_of_20_rows_counts(tmp_path: Path) -> None:
    families = {
        "title": "Memory: unseen families, the worst first",
        "columns": ["family", "rows", "coverage %"],
        "rows": [["first", 20, 90.0], ["second", 30, 84.0], ["small", 19, 0.0]],
        "notes": [],
    }
    _, others = tables_of(printed(tmp_path, {"memory": [families]}))
    (line,) = (line for figure, line in others.items() if figure.startswith("memory, families of 20 rows"))
    assert line == ["\u2265 100", "50.0", "", "**missed**"]


def test_the_page_begins_with_real_models_and_counts_the_goals_that_are_met_and_so_does_readme() -> None:
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "lab/docs/accuracy.md"))
    main, others = tables_of(page)
    assert next(iter(main)).startswith("utilization of real models")
    rows = [*main.values(), *others.values()]
    met = f"{sum(row[-1] == 'met' for row in rows)} of {len(rows)}"
    assert f"\nGoals met: {met}." in page
    assert f"{met} goals are met" in " ".join(readme.split())
    assert sum("inside the 90 % interval" in figure for figure in others) >= 7
