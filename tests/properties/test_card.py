"""A card gives back the graph that went in, and never more than a refusal for anything else."""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusage.graphs.card import text as card
from gpusage.graphs.card.text import decompress
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node

SIZES = st.integers(-64, 4096)
SHAPES = st.lists(SIZES, max_size=4).map(tuple)
FIXED = st.lists(st.integers(0, 4096), max_size=4).map(tuple)
TEXT = st.text(st.characters(categories=["L", "N", "P", "Zs"]).filter(str.isprintable), max_size=40)
ATTRIBUTES = st.dictionaries(
    st.sampled_from(["group", "kernel_shape", "epsilon", "direction"]),
    st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.just("forward")
    | st.lists(st.integers(-9, 9), max_size=4).map(tuple),
    max_size=3,
).map(lambda counts: tuple(sorted(counts.items())))
NODES = st.builds(
    Node,
    op_type=st.sampled_from(["Conv", "MatMul", "com.acme.Mystery"]),
    inputs=st.lists(SHAPES, max_size=3).map(tuple),
    outputs=st.lists(SHAPES, max_size=2).map(tuple),
    parameters=st.lists(FIXED, max_size=2).map(tuple),
    attributes=ATTRIBUTES,
    element_type=st.sampled_from(["float", "int64", "bool"]),
)


@st.composite
def graphs(draw: st.DrawFn) -> ModelGraph:
    """Draw a graph whose nodes read only what stands before them."""
    nodes = tuple(draw(st.lists(NODES, max_size=12)))
    inputs = tuple(draw(st.lists(st.tuples(TEXT, SHAPES), min_size=1, max_size=3)))
    producers = tuple(
        tuple(draw(st.integers(-len(inputs), index - 1)) for _ in node.inputs) for index, node in enumerate(nodes)
    )
    return ModelGraph(
        name=draw(TEXT),
        source=draw(TEXT),
        nodes=nodes,
        producers=producers,
        inputs=inputs,
        parameter_count=draw(st.integers(0, 2**40)),
        fixed_batch_size=draw(st.none() | st.integers(1, 512)),
        unknown_op_types=tuple(draw(st.lists(st.tuples(TEXT, st.integers(1, 99)), max_size=2))),
        notes=tuple(draw(st.lists(TEXT, max_size=2))),
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(graphs())
def test_a_card_gives_back_the_graph_that_went_in(graph: ModelGraph) -> None:
    assert card.decode(card.encode(graph)) == graph


@given(graphs())
def test_a_card_is_one_plain_word_of_limited_length(graph: ModelGraph) -> None:
    text = card.encode(graph)
    assert len(text) <= 4096
    assert base64.b64encode(base64.b64decode(text, validate=True)).decode() == text


def _refusal(text: str) -> str:
    try:
        card.decode(text)
    except GraphError as error:
        return str(error)
    return "accepted"


@given(
    st.text() | st.text(st.sampled_from("ABCabc019+/=")) | st.binary().map(lambda raw: base64.b64encode(raw).decode())
)
def test_any_text_is_a_card_or_refused_in_one_line(text: str) -> None:
    assert _refusal(text).isprintable()


@given(JSON)
def test_any_json_is_a_card_or_refused_in_one_line(document: object) -> None:
    assert _refusal(_packed(document)).isprintable()


@given(graphs(), st.data())
def test_a_card_with_any_field_exchanged_is_a_card_or_refused_in_one_line(
    graph: ModelGraph, data: st.DataObject
) -> None:
    document = json.loads(_unpacked(card.encode(graph)))
    place: Any = document
    while place and isinstance(place, (dict, list)):
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or data.draw(st.booleans()):
            place[key] = data.draw(JSON | st.sampled_from([2**63, -(2**63), 10**30, math.inf, -0.0, [[]], {"a": {}}]))
            break
        place = place[key]
    assert _refusal(_packed(document)).isprintable()


@pytest.mark.parametrize("depth", [900, 100_000])
def test_deeply_nested_json_is_refused(depth: int) -> None:
    text = base64.b64encode(zlib.compress(b"[" * depth)).decode()
    assert _refusal(text).startswith("Card must be JSON")


def _packed(document: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()


def _unpacked(text: str) -> bytes:
    content = decompress(base64.b64decode(text), card.MAXIMUM_UNPACKED_BYTES)
    assert content is not None
    return content
