"""Tables fit the terminal, fold before they lose anything, and act on no terminal."""

from __future__ import annotations

import json

import pytest

from gpusage.boundary.printable_text import visible_lines
from gpusage.cli.program import report_failure
from gpusage.cli.tables import Column, print_json, show, show_filled, show_rows, show_title

EVIL = "\x1b]0;owned\x07\u202efdp.\x9b31m"
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
                "Not shown, the terminal is too",
                "narrow: GPU busy.",
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


def test_a_column_of_words_keeps_its_brackets_in_their_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "32")
    show_rows((Column("reason", is_left=True), *COLUMNS[1:2]), [["only N (a b) on h100", ROWS[0][1]]])
    assert "only N (a b) on h100    197 ms" in capsys.readouterr().out.splitlines()


def test_a_file_or_a_pipe_has_every_column(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It has no width; those that are empty throughout may be left out."""
    monkeypatch.delenv("COLUMNS", raising=False)
    many = [Column("job", is_left=True), *(Column(f"column {number}", is_optional=True) for number in range(30))]
    show_rows(many, [["a", *("12345" for _ in many[1:])]])
    assert capsys.readouterr().out.splitlines()[-1].split() == ["a", *("12345" for _ in many[1:])]
    show_filled(COLUMNS, [["v100", "", "97 %"]])
    assert capsys.readouterr().out.splitlines() == ["GPU   GPU busy", "v100      97 %"]


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


def test_escapes_bells_and_turned_writing_become_question_marks(capsys: pytest.CaptureFixture[str]) -> None:
    """In text, titles, cells and errors; line breaks stay where they are ours."""
    assert visible_lines(f"one\n{EVIL}") == "one\n?]0;owned??fdp.?31m"
    show(EVIL)
    show_title(EVIL)
    show_rows([Column("model", is_left=True)], [[EVIL]])
    report_failure("input", EVIL, 1, ())
    seen = capsys.readouterr()
    assert "owned" in seen.out
    for text in (seen.out, seen.err):
        assert not {*text} & {*"\x1b\x07\u202e\x9b"}


def test_json_escapes_what_a_terminal_would_act_on(capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads the very same text."""
    print_json({"model": EVIL})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert "\x1b" not in printed
    assert json.loads(printed) == {"model": EVIL}
