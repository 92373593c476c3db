"""Score tables in Markdown and as JSON."""

from __future__ import annotations

from dataclasses import replace

from gpusage_lab.learning import report
from gpusage_lab.learning.targets import ScoreTable


def test_a_table_in_markdown_has_its_title_its_cells_and_its_notes_and_a_long_one_is_folded() -> None:
    table = ScoreTable(title="t", columns=("of", "error %"), rows=(("ours", 4.25), ("none", None)), notes=("One.",))
    rows = ["| of | error % |", "|---|--:|", "| ours | 4.2 |", "| none |  |"]
    assert list(report.table_lines(table)) == ["**t**", "", *rows, "", "One.  "]
    long = list(report.table_lines(replace(table, rows=table.rows * 7)))
    assert (long[0], long[-1]) == ('<details markdown="1"><summary>t</summary>', "</details>")


def test_a_program_gets_the_figures_themselves() -> None:
    table = ScoreTable(title="t", columns=("rows of", "n"), rows=(("x", 2), (None, 0.5)))
    assert report.documents({"step_time": [table]})["step_time"][0]["rows"] == (("x", 2), (None, 0.5))
