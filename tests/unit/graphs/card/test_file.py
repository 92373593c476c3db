"""Cards as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpusage.graphs.card.text import read_model, write_file
from gpusage_hooks.errors import GraphError
from unit.graphs.card.test_text import GRAPH


def test_a_saved_card_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "small.card.json"
    write_file(GRAPH, path)
    assert read_model(str(path), {}) == GRAPH


def test_a_saved_card_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "small.card.json"
    write_file(GRAPH, path)
    document = json.loads(path.read_text())
    assert document["kinds"][0] == {
        "op": "Conv",
        "out": [[-1, 4, 8, 8]],
        "in": [[-1, 3, 8, 8]],
        "par": [[4, 3, 1, 1], [4]],
    }
    assert (document["nodes"], document["producers"]) == ([0, 1, 1], [[-1], [1], [1]])


def test_a_card_that_cannot_be_written_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="must be writable; got: No such file"):
        write_file(GRAPH, tmp_path / "absent" / "x.card.json")
    assert list(tmp_path.iterdir()) == []


def test_a_card_is_refused_in_one_sentence_where_nothing_may_be_beside_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GraphError, match="must be writable; got: Not a directory"):
        write_file(GRAPH, tmp_path / "file" / "x.card.json")


def test_a_card_takes_no_shapes(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="must be used without shapes; got seq"):
        read_model(str(tmp_path / "x.card.json"), {"seq": (8,)})


def test_a_missing_card_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no such file"):
        read_model(str(tmp_path / "x.card.json"), {})
