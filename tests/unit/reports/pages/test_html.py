"""The frame of every page."""

from __future__ import annotations

from gpusage.reports.pages import html


def test_a_page_has_no_control_characters_of_a_name() -> None:
    """They act on a terminal that shows the page, or turn its text round; line breaks and markup stay."""
    page = html.page("a\x1b[31m", html.table(["user"], [["b\x07\x00\u202ec<&\n"]]))
    assert "<h1>a?[31m</h1>" in page
    assert "<td>b???c&lt;&amp;\n</td>" in page
