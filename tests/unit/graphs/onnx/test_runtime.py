"""Files that ONNX Runtime optimised or quantised cost what the same model costs as its exporter wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gpusage.graphs.onnx.reader import read_model
from gpusage.predictors.work.operators import ElementCounts, rule_of
from gpusage_hooks.types import ModelGraph

Tensors = Mapping[str, tuple[int, Sequence[int]]]
"""Each by name: its element type and its sizes."""

FLOAT, BYTE, WHOLE = TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT64


def node(
    op_type: str, inputs: str, outputs: str, domain: str = "com.microsoft", **attributes: object
) -> onnx.NodeProto:
    """Return a node; names are words, and a dash is one that is left out."""
    names = [[name.replace("-", "") for name in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op_type, *names, domain=domain, **attributes)


def read(
    path: Path, nodes: list[onnx.NodeProto], inputs: Tensors, weights: Tensors | None = None, outputs: str = "y"
) -> ModelGraph:
    """Return what is read of a model; a size of 0 is the batch."""
    values = [
        helper.make_tensor_value_info(name, kind, [size or "batch" for size in sizes])
        for name, (kind, sizes) in inputs.items()
    ]
    out = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs.split()]
    held = [TensorProto(name=name, dims=sizes, data_type=kind) for name, (kind, sizes) in (weights or {}).items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    file = path / "runtime.onnx"
    file.write_bytes(
        helper.make_model(helper.make_graph(nodes, "g", values, out, held), opset_imports=opsets).SerializeToString()
    )
    graph = read_model(str(file), {})
    assert graph is not None
    return graph


def product_flop(graph: ModelGraph) -> int:
    """Return the FLOP of products, convolutions and attentions at batch 1."""
    rules = [(one, rule_of(one)) for one in graph.nodes]
    return sum(rule.flop(one, ElementCounts(1)) for one, rule in rules if rule.flop is not None)


PICTURE = {"x": (FLOAT, (0, 64, 48))}


def test_a_text_model_of_its_optimizer_keeps_its_products(tmp_path: Path) -> None:
    """The embedding had no rule, so every shape after it was a guess: a BERT had 0.1 % of its FLOP."""
    nodes = [
        node("EmbedLayerNormalization", "ids segments words places kinds s b mask", "e lengths"),
        node("Attention", "e w wb lengths", "a", num_heads=4),
        node("SkipLayerNormalization", "a e s b", "n"),
        node("MatMul", "n up", "u", domain=""),
        node("BiasGelu", "u ub", "y"),
    ]
    inputs = dict.fromkeys(("ids", "segments", "mask"), (WHOLE, (0, 64)))
    tables = {"words": (FLOAT, (1000, 48)), "places": (FLOAT, (512, 48)), "kinds": (FLOAT, (2, 48))}
    norm = {"s": (FLOAT, (48,)), "b": (FLOAT, (48,))}
    weights = {"w": (FLOAT, (48, 144)), "wb": (FLOAT, (144,)), "up": (FLOAT, (48, 192)), "ub": (FLOAT, (192,))}
    graph = read(tmp_path, nodes, inputs, {**tables, **norm, **weights})
    assert not graph.unknown_op_types
    # query, key and value; scores and their sum; the wide layer
    assert product_flop(graph) == 2 * 64 * 48 * 144 + 4 * 64 * 48 * 64 + 2 * 64 * 48 * 192
    assert graph.parameter_count == 1514 * 48 + 2 * 48 + 48 * 144 + 144 + 48 * 192 + 192


@pytest.mark.parametrize(
    ("made", "weights", "flop"),
    [
        (node("FusedGemm", "flat w", "y", transB=1), {"w": (FLOAT, (96, 48))}, 2 * 64 * 48 * 96),
        (node("DynamicQuantizeMatMul", "x w scale", "y"), {"w": (BYTE, (48, 96))}, 2 * 64 * 48 * 96),
        (node("MatMulIntegerToFloat", "bytes w scale scale", "y"), {"w": (BYTE, (48, 96))}, 2 * 64 * 48 * 96),
        (node("QGemm", "flat8 scale zero w scale zero", "y"), {"w": (BYTE, (48, 96))}, 2 * 64 * 48 * 96),
        (
            node("QLinearMatMul", "bytes scale zero w scale zero scale zero", "y", domain=""),
            {"w": (BYTE, (48, 96))},
            2 * 64 * 48 * 96,
        ),
        (
            node("MatMulNBits", "x w scales", "y", K=48, N=96, bits=4, block_size=32),
            {"w": (TensorProto.UINT8, (96, 2, 16)), "scales": (FLOAT, (192,))},
            2 * 64 * 48 * 96,
        ),
        (
            node("DynamicQuantizeLSTM", "x w r b - - - - ws wz rs rz", "y", hidden_size=32),
            {"w": (BYTE, (1, 48, 128)), "r": (BYTE, (1, 32, 128)), "b": (FLOAT, (1, 256))},
            2 * 64 * (48 + 32) * 128,
        ),
    ],
    ids=lambda one: one.op_type if isinstance(one, onnx.NodeProto) else None,
)
def test_a_product_under_a_name_of_its_own_has_its_flop(
    tmp_path: Path, made: onnx.NodeProto, weights: Tensors, flop: int
) -> None:
    before = [
        node("QuantizeLinear", "x scale zero", "bytes", domain=""),
        node("Flatten", "x", "flat", domain="", axis=2),
        node("Flatten", "bytes", "flat8", domain="", axis=2),
    ]
    small = {"scale": (FLOAT, ()), "zero": (BYTE, ()), **dict.fromkeys(("ws", "rs"), (FLOAT, (1,)))}
    small |= dict.fromkeys(("wz", "rz"), (BYTE, (1,)))
    graph = read(tmp_path, [*before, made], PICTURE, {**weights, **small})
    assert product_flop(graph) == flop
    assert made.op_type == "FusedGemm" or made.op_type in dict(graph.unknown_op_types)  # its kernel is not known


def test_a_weight_that_is_packed_counts_all_of_its_elements_at_its_width(tmp_path: Path) -> None:
    made = node("MatMulNBits", "x w scales", "y", K=48, N=96, bits=4, block_size=32)
    weights = {"w": (TensorProto.UINT8, (96, 2, 16)), "scales": (FLOAT, (192,))}
    graph = read(tmp_path, [made], PICTURE, weights)
    assert graph.parameter_count == 48 * 96
    assert graph.nodes[0].parameters == ((48, 96),)
    assert graph.precision == "int4"


def test_arithmetic_on_bytes_leaves_what_follows_known(tmp_path: Path) -> None:
    nodes = [
        node("QuantizeLinear", "x scale zero", "a", domain=""),
        node("QLinearAdd", "a scale zero a scale zero scale zero", "b"),
        node("QLinearConcat", "scale zero a scale zero b scale zero", "c", axis=2),
        node("QLinearSigmoid", "c scale zero scale zero", "d"),
        node("DequantizeLinear", "d scale zero", "y", domain=""),
    ]
    graph = read(tmp_path, nodes, PICTURE, {"scale": (FLOAT, ()), "zero": (BYTE, ())})
    assert graph.nodes[-1].outputs == ((-1, 64, 96),)
    assert not any("because no rule describes them" in note for note in graph.notes)


CONVOLUTION = {"w": (FLOAT, (8, 4, 3, 3)), "b": (FLOAT, (8,))}


@pytest.mark.parametrize(
    ("made", "sizes", "weights"),
    [
        (node("FusedConv", "x w b", "y", activation="Relu", pads=[1, 1, 1, 1]), (0, 4, 9, 9), CONVOLUTION),
        (
            node("Conv", "x w b", "y", domain="com.microsoft.nchwc", activation="Relu", pads=[1, 1, 1, 1]),
            (0, 4, 9, 9),
            CONVOLUTION,
        ),
        (
            node("NhwcConv", "x w b", "y", pads=[1, 1, 1, 1]),
            (0, 9, 9, 4),
            {"w": (FLOAT, (8, 3, 3, 4)), "b": (FLOAT, (8,))},
        ),
    ],
    ids=["fused", "in blocks", "channels last"],
)
def test_a_convolution_that_was_fused_or_turned_is_a_convolution(
    tmp_path: Path, made: onnx.NodeProto, sizes: Sequence[int], weights: Tensors
) -> None:
    graph = read(tmp_path, [made], {"x": (FLOAT, sizes)}, weights)
    assert product_flop(graph) == 2 * 81 * 8 * 4 * 9
    kinds = [one.op_type for one in graph.nodes if one.op_type != "Transpose"]
    assert kinds == ["Conv"] + ["Relu"] * any(one.name == "activation" for one in made.attribute)
    assert graph.nodes[-1].outputs[0] == ((-1, 9, 9, 8) if made.op_type == "NhwcConv" else (-1, 8, 9, 9))
    assert not graph.unknown_op_types


def test_a_normalization_that_was_folded_before_the_convolution_was_fused_is_put_back(tmp_path: Path) -> None:
    """Training of a MobileNet was predicted a third too fast."""
    made = node("FusedConv", "x onnx::Conv_12 onnx::Conv_13", "y", activation="Relu")
    weights = {"onnx::Conv_12": (FLOAT, (8, 4, 3, 3)), "onnx::Conv_13": (FLOAT, (8,))}
    graph = read(tmp_path, [made], {"x": (FLOAT, (0, 4, 9, 9))}, weights)
    assert [one.op_type for one in graph.nodes] == ["Conv", "BatchNormalization", "Relu"]


@pytest.mark.parametrize(
    ("made", "inputs", "flop"),
    [
        # four heads of 12; key and value of their own
        (
            node("MultiHeadAttention", "q k k - mask", "y", num_heads=4),
            {"q": (FLOAT, (0, 64, 48)), "k": (FLOAT, (0, 32, 48)), "mask": (WHOLE, (0, 32))},
            4 * 64 * 48 * 32,
        ),
        # packed by head: 4 heads, of three, of 12
        (node("MultiHeadAttention", "q", "y", num_heads=4), {"q": (FLOAT, (0, 64, 4, 3, 12))}, 4 * 64 * 48 * 64),
        # packed: four queries and two keys and values of 12
        (
            node("GroupQueryAttention", "q", "y", num_heads=4, kv_num_heads=2),
            {"q": (FLOAT, (0, 64, 96))},
            4 * 64 * 48 * 64,
        ),
        # one token after 99 others
        (
            node("GroupQueryAttention", "q k k past past", "y pk pv", num_heads=4, kv_num_heads=2),
            {"q": (FLOAT, (0, 1, 48)), "k": (FLOAT, (0, 1, 24)), "past": (FLOAT, (0, 2, 99, 12))},
            4 * 1 * 48 * 100,
        ),
        (
            node("Attention", "q k k - past past", "y pk pv", domain="", q_num_heads=4, kv_num_heads=2),
            {"q": (FLOAT, (0, 1, 48)), "k": (FLOAT, (0, 1, 24)), "past": (FLOAT, (0, 2, 99, 12))},
            4 * 1 * 48 * 100,
        ),
    ],
    ids=["apart", "packed", "packed groups", "groups after others", "ONNX's own after others"],
)
def test_an_attention_costs_its_queries_times_its_keys(
    tmp_path: Path, made: onnx.NodeProto, inputs: Tensors, flop: int
) -> None:
    graph = read(tmp_path, [made], inputs, outputs=" ".join(made.output))
    assert graph.nodes[0].outputs[0][-1] == 48
    assert product_flop(graph) == flop
