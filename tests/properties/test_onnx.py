"""Whatever bytes a file holds, it is read or refused in one line; what is read agrees with itself."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.graphs.card import text as card
from gpusage.graphs.onnx.reader import read_model
from gpusage_hooks.errors import GraphError

MODELS = Path(__file__).parents[2] / "examples" / "models"
SMALL = [(MODELS / f"{name}.onnx").read_bytes() for name in ("lstm_lm", "vgg16")]


def outcome(content: bytes) -> str:
    """Return what becomes of a file with *content*."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(content)
        try:
            graph = read_model(str(path), {})
        except GraphError as error:
            return str(error)
    assert graph is not None
    assert all(made < index for index, row in enumerate(graph.producers) for made in row)
    assert [len(row) for row in graph.producers] == [len(node.inputs) for node in graph.nodes]
    return "read"


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_one_line(content: bytes) -> None:
    assert outcome(content).isprintable()


@given(st.sampled_from(SMALL), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_model_with_some_bytes_exchanged_is_read_or_refused_in_one_line(
    content: bytes, changes: list[tuple[float, int]]
) -> None:
    mutable = bytearray(content)
    for place, byte in changes:
        mutable[int(place * (len(mutable) - 1))] = byte
    assert outcome(bytes(mutable)).isprintable()


@given(st.sampled_from(SMALL), st.floats(0, 1), st.floats(0, 1))
def test_a_model_with_a_part_cut_out_is_read_or_refused_in_one_line(content: bytes, start: float, end: float) -> None:
    first, last = sorted((int(start * len(content)), int(end * len(content))))
    assert outcome(content[:first] + content[last:]).isprintable()


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.stem)
def test_every_example_model_fits_a_card_and_comes_back_the_same(path: Path) -> None:
    graph = read_model(str(path), {})
    assert graph is not None
    text = card.encode(graph)
    assert len(text) <= 4096
    back = card.decode(text)
    assert (back.nodes, back.producers, back.inputs) == (graph.nodes, graph.producers, graph.inputs)
