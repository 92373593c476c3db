"""`bench/accuracy.py`: what it puts between its marks in a page, and what README and docs/accuracy.md have there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
ALL, GOALS = "<!-- made by bench/accuracy.py: do not edit -->", "<!-- goals by bench/accuracy.py: do not edit -->"
END = "<!-- end of what bench/accuracy.py made -->"
MEMORY = {
    "title": "Memory: measured peaks of training, flat and impossible rows left out",
    "columns": ["predictor", "MAPE %", "median %", "above high %", "coverage %"],
    "rows": [["gpusage, unseen families", 4.0, 3.5, 0.5, 96.0], ["boosting", 5.5, 3.0, None, None]],
    "notes": ["Rows of a test."],
}


def updated(page: Path, targets: dict[str, list[dict[str, Any]]]) -> subprocess.CompletedProcess[str]:
    """Let the script put what was evaluated into *page*."""
    found = page.with_suffix(".json")
    found.write_text(json.dumps({"targets": targets}))
    command = [sys.executable, ROOT / "bench" / "accuracy.py", "--json", found, "--update", page]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of the table of the goals, by figure."""
    lines = text.partition("| figure | goal |")[2].partition("\n\n")[0].splitlines()[2:]
    return {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)}


def test_what_stands_between_the_marks_is_made_anew_and_all_else_is_left_as_it_was(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n\nBefore \u2264.\n\n{ALL}\n\nof yesterday\n\n{END}\n\nAfter.\n")
    assert updated(page, {"memory": [MEMORY]}).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Mine\n\nBefore \u2264.\n\n{ALL}\n\n## Against the goals\n")
    assert text.endswith(f"\n\n{END}\n\nAfter.\n")
    assert "of yesterday" not in text
    assert "- Memory: measured peaks of training, flat and impossible rows left out, gpusage, unseen families" in text
    assert "Rows of a test." in text
    assert updated(page, {"memory": [MEMORY]}).returncode == 0
    assert page.read_text(encoding="utf-8") == text


def test_a_goal_is_met_or_missed_by_its_bounds_with_the_best_rival_beside_it_and_where_no_table_is_it_says_so(
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{GOALS}{END}")
    assert updated(page, {"memory": [MEMORY]}).returncode == 0
    found = rows_of(page.read_text(encoding="utf-8"))
    assert found["memory, family unseen: MAPE %"] == ["\u2264 5", "4.0", "5.5 (boosting)", "met"]
    assert found["memory, family unseen: median %"] == ["\u2264 3", "3.5", "3.0 (boosting)", "**missed**"]
    assert found["memory, more than the high end: % of rows"] == ["\u2264 1", "0.5", "", "met"]
    assert found["memory, inside the 90 % interval, %"] == ["85 to 95", "96.0", "", "**missed**"]
    assert found["utilization, type unseen: RMSLE"] == ["\u2264 0.1", "no table", "", ""]
    assert "##" not in page.read_text(encoding="utf-8")


def test_a_page_without_the_marks_is_named_and_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{ALL}\nno end\n")
    refused = updated(page, {})
    assert refused.returncode == 1
    assert f"Page '{page}' must have the lines '{ALL}' and '{END}'; got none." in refused.stderr
    assert page.read_text() == f"{ALL}\nno end\n"


def test_readme_has_every_goal_that_docs_accuracy_has_with_the_same_figures_those_of_the_intervals_too() -> None:
    readme, page = (rows_of((ROOT / name).read_text(encoding="utf-8")) for name in ("README.md", "docs/accuracy.md"))
    assert readme == page
    assert sum("inside the 90 % interval" in figure for figure in readme) >= 7
