"""Nothing of a model file's or a path's acts on the terminal that shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from gpusage.cli.failure import tell
from gpusage.cli.tables import Column, print_json, show, show_rows, show_title
from gpusage.graphs.onnx.reader import read_model
from gpusage.plain_text import visible_lines

EVIL = "\x1b]0;owned\x07\u202efdp.\x9b31m"


def test_escapes_bells_and_turned_writing_become_question_marks(capsys: pytest.CaptureFixture[str]) -> None:
    """In text, titles, cells and errors; line breaks stay where they are ours."""
    assert visible_lines(f"one\n{EVIL}") == "one\n?]0;owned??fdp.?31m"
    show(EVIL)
    show_title(EVIL)
    show_rows([Column("model", is_left=True)], [[EVIL]])
    tell("input", EVIL, 1, ())
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


def test_an_operator_with_a_hostile_name_is_read_as_harmless(tmp_path: Path) -> None:
    """Operator and domain stand in a file as free text, and are shown where no rule knows them."""
    node = helper.make_node(EVIL, ["x"], ["y"], domain=EVIL)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    graph = read_model(str(path), {})
    assert graph is not None
    assert all(each.op_type.isprintable() for each in graph.nodes)
    assert all(text.isprintable() for text, _ in graph.unknown_op_types)
    assert all(note.isprintable() for note in graph.notes)
    assert graph.unknown_op_types
