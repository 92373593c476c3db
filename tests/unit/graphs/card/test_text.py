"""Cards that were tampered with, and what is kept in a card."""

from __future__ import annotations

import base64
import json
import lzma
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpusage.graphs.card import text as card
from gpusage.graphs.card.text import decompress
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Node

CONV = Node(op_type="Conv", inputs=((-1, 3, 8, 8),), outputs=((-1, 4, 8, 8),), parameters=((4, 3, 1, 1), (4,)))
RELU = Node(op_type="Relu", inputs=((-1, 4, 8, 8),), outputs=((-1, 4, 8, 8),))
GRAPH = ModelGraph(
    name="small",
    source="/data/small.onnx",
    nodes=(CONV, RELU, RELU),
    producers=((-1,), (0,), (1,)),
    inputs=(("input", (-1, 3, 8, 8)),),
    parameter_count=16,  # 4 * 3 weights and 4 biases
    notes=("One note.",),
)


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda content: zlib.compress(content, 9), id="deflate"),
        pytest.param(
            lambda content: lzma.compress(
                content, lzma.FORMAT_ALONE, filters=[{"id": lzma.FILTER_LZMA1, "dict_size": 2**20}]
            ),
            id="lzma",
        ),
    ],
)
def test_a_zip_bomb_is_refused(pack: Callable[[bytes], bytes]) -> None:
    bomb = base64.b64encode(pack(b" " * 40_000_000)).decode()
    assert len(bomb) < card.MAXIMUM_TEXT_BYTES  # it passes the first gate
    with pytest.raises(GraphError, match="unpack to at most 1048576 bytes"):
        card.decode(bomb)


@pytest.mark.parametrize("length", [0.5, 0.9])
def test_a_card_cut_short_is_refused(length: float) -> None:
    packed = base64.b64decode(card.encode(GRAPH))
    with pytest.raises(GraphError, match="must be whole"):
        card.decode(base64.b64encode(packed[: int(length * len(packed))]).decode())


def test_a_card_that_asks_for_much_memory_is_refused() -> None:
    greedy = lzma.compress(b"{}", lzma.FORMAT_ALONE, filters=[{"id": lzma.FILTER_LZMA1, "dict_size": 2**29}])
    with pytest.raises(GraphError, match="must be the base64 text"):
        card.decode(base64.b64encode(greedy).decode())


def test_a_text_beyond_the_limit_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(GraphError, match="at most 65536 bytes"):
        card.decode("A" * 65_537)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        pytest.param(
            {"kinds": [{"op": "A", "out": []}], "nodes": [0], "producers": [[-1]]},
            "reads what nothing writes",
            id="no-inputs-said",
        ),
        pytest.param({"nodes": [0, 1, 2]}, "'nodes' holds a figure out of range", id="kind-that-is-not-there"),
        pytest.param({"producers": [[-1], [2], [1]]}, "'producers' holds a figure out of range", id="from-before-all"),
        pytest.param({"producers": [[-1], [0], [1]]}, "a node that feeds itself", id="a-cycle-of-one"),
        pytest.param({"producers": [[-2], [1], [1]]}, "'producers' holds a figure out of range", id="no-such-input"),
        pytest.param({"producers": [[-1], [1]]}, "differ in length", id="too-few-producers"),
        pytest.param({"parameter_count": 1e9}, "'parameter_count' holds", id="not-whole"),
        pytest.param({"parameter_count": True}, "'parameter_count' holds", id="a-boolean-is-no-count"),
        pytest.param({"gpusage_card": 2}, "'gpusage_card' is not 1", id="another-version"),
        pytest.param({"inputs": [["x", [10**9, 10**9]]]}, r"at most 2\^48 elements", id="huge"),
        pytest.param({"kinds": [{"op": "a b", "in": [], "out": []}]}, "unlikely word", id="odd-operator"),
        pytest.param({"kinds": [{"op": "A", "in": [], "out": [], "par": [[-1]]}]}, "'par' follows", id="by-batch"),
        pytest.param(
            {"kinds": [{"op": "A", "in": [], "out": [], "attr": {f"a{n}": 1 for n in range(65)}}]},
            "'attr' is not an object of at most 64",
            id="attributes",
        ),
        pytest.param({"kinds": [{"op": "A", "out": []}] * 2001}, "'kinds' is not a list of at most 2000", id="kinds"),
        pytest.param({"notes": [[0] * 200_001]}, "at most 200000 figures", id="figures"),
    ],
)
def test_a_forged_field_is_refused_in_one_sentence(changes: dict[str, object], rule: str) -> None:
    document = json.loads(_unpacked(card.encode(GRAPH))) | changes
    with pytest.raises(GraphError, match=rule):
        card.decode(base64.b64encode(zlib.compress(json.dumps(document).encode())).decode())


def test_a_graph_too_irregular_for_a_card_is_refused() -> None:
    scattered = tuple(replace(RELU, inputs=((7919 * i * i % 104_729, i),)) for i in range(1, 3000))
    graph = replace(GRAPH, nodes=scattered, producers=tuple((-1,) for _ in scattered))
    with pytest.raises(GraphError, match="must be at most 4096 bytes"):
        card.encode(graph)


def test_a_graph_of_more_kinds_than_a_card_may_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "MAXIMUM_KINDS", 1)
    with pytest.raises(GraphError, match="must have at most 1 kinds of nodes; got 2"):
        card.encode(GRAPH)


def test_a_long_source_keeps_its_end() -> None:
    graph = replace(GRAPH, source="/very" * 40 + "/small.onnx")
    assert card.decode(card.encode(graph)).source.endswith("/very/small.onnx")


def test_what_a_terminal_would_act_on_does_not_come_out_of_a_card() -> None:
    graph = replace(GRAPH, name="a\x1b[31mb", notes=("one\ntwo",))
    read = card.decode(card.encode(graph))
    assert (read.name, read.notes) == ("a?[31mb", ("one?two",))


def test_a_forged_card_cannot_fill_the_store_with_notes() -> None:
    document = json.loads(_unpacked(card.encode(GRAPH))) | {"notes": ["x" * 200] * 4000}
    read = card.decode(base64.b64encode(zlib.compress(json.dumps(document).encode())).decode())
    assert len(read.notes) == 6  # as many as `encode` keeps


def _unpacked(text: str) -> bytes:
    content = decompress(base64.b64decode(text), card.MAXIMUM_UNPACKED_BYTES)
    assert content is not None
    return content


def test_the_equation_of_an_einsum_survives() -> None:
    product = Node(
        op_type="Einsum", inputs=((-1, 4, 8),), outputs=((-1, 4, 8),), attributes=(("equation", "nhw,ixh->nixw"),)
    )
    graph = ModelGraph(
        name="one", source="test", nodes=(product,), producers=((-1,),), inputs=(("x", (-1, 4, 8)),), parameter_count=0
    )
    assert card.decode(card.encode(graph)) == graph
