"""Tables fit the terminal, and fold before they lose anything."""

from __future__ import annotations

import pytest

from gpusage.cli.tables import Column, show, show_rows

COLUMNS = (Column("GPU", is_left=True), Column("step time"), Column("GPU busy", is_optional=True))
ROWS = [["v100-sxm2-16gb", "197 ms (170-231)", "97 % (90-100)"]]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        # 14 + 2 + 16 + 2 + 13 = 47 wide
        (47, ["GPU                    step time       GPU busy", "v100-sxm2-16gb  197 ms (170-231)  97 % (90-100)"]),
        # 14 + 1 + 9 + 1 + 8 = 33 wide with the intervals below
        (
            46,
            [
                "                    step      GPU",
                "GPU                 time     busy",
                "v100-sxm2-16gb    197 ms     97 %",
                "               (170-231) (90-100)",
            ],
        ),
        (
            32,
            [
                "                    step",
                "GPU                 time",
                "v100-sxm2-16gb    197 ms",
                "               (170-231)",
                "Left out, for want of width: GPU",
                "busy.",
            ],
        ),
        (22, ["v100-sxm2-16gb", "  step time: 197 ms", "(170-231)", "  GPU busy: 97 %", "(90-100)"]),
    ],
)
def test_a_table_takes_the_widest_form_that_fits(
    width: int, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show_rows(COLUMNS, ROWS)
    assert capsys.readouterr().out.splitlines() == expected


def test_brackets_in_a_models_name_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show("[bold]model[/bold] :smile:")
    assert capsys.readouterr().out == "[bold]model[/bold] :smile:\n"


def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    show_rows(COLUMNS, ROWS)
    assert "\x1b[1m" in capsys.readouterr().out
    monkeypatch.delenv("FORCE_COLOR")
    show_rows(COLUMNS, ROWS)
    assert "\x1b" not in capsys.readouterr().out
