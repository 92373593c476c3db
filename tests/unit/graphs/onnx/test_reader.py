"""What the ONNX reader makes of a graph: the batch, free dimensions, weights, folded and fused operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gpusage.decisions.prediction import with_model_settings
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.graphs.onnx.reader import read_model
from gpusage.predictors.analysis import analyze
from gpusage.predictors.needs import predicted
from gpusage.predictors.work.lowering import lower, weight_memory_bytes
from gpusage.predictors.work.structure import analyze_structure
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Workload

Sizes = Sequence[int | str | None]
Nodes = list[onnx.NodeProto]
FIXED_NOTE = (
    "The file works only at batch size {}. "
    "Export it from 2 samples, with dynamic_shapes=({{0: torch.export.Dim.AUTO}},) to use another."
)


def node(op_type: str, inputs: str, output: str, domain: str = "", **attributes: object) -> onnx.NodeProto:
    """Return a node; *inputs* are words."""
    return helper.make_node(op_type, inputs.split(), [output], domain=domain, **attributes)


def weights(**shapes: Sequence[int]) -> list[onnx.TensorProto]:
    """Return weights without their bytes, as an exporter leaves them beside the file."""
    return [TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT) for name, shape in shapes.items()]


def numbers(name: str, *values: int) -> onnx.TensorProto:
    """Return a constant of whole numbers."""
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def number(name: str, value: float) -> onnx.TensorProto:
    """Return a constant of one real number."""
    return helper.make_tensor(name, TensorProto.FLOAT, [], [value])


class Maker:
    """Writes a model into a test's folder and reads it."""

    def __init__(self, folder: Path) -> None:
        """Remember the folder."""
        self.path = folder / "small.onnx"

    def __call__(
        self,
        inputs: Mapping[str, Sizes],
        nodes: Nodes,
        tensors: Sequence[onnx.TensorProto] = (),
        shape: Mapping[str, Sequence[int]] | None = None,
        functions: Sequence[onnx.FunctionProto] = (),
    ) -> ModelGraph:
        """Return the graph of a model whose output is the last node's."""
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in inputs.items()]
        out = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)]
        graph = helper.make_graph(nodes, "g", values, out, tensors)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
        model = helper.make_model(graph, opset_imports=opsets, functions=functions)
        self.path.write_bytes(model.SerializeToString())
        read = read_model(str(self.path), shape or {})
        assert read is not None
        return read


@pytest.fixture
def read(tmp_path: Path) -> Maker:
    """Return what writes and reads a model."""
    return Maker(tmp_path)


def op_types(graph: ModelGraph) -> list[str]:
    """Return the operators in order."""
    return [one.op_type for one in graph.nodes]


def test_a_convolution_is_said_with_its_weights_and_what_changes_its_cost(read: Maker) -> None:
    conv = node("Conv", "x w b", "y", strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3], group=1)
    graph = read({"x": ["batch", 3, 32, 32]}, [conv], weights(w=[8, 3, 3, 3], b=[8]))
    assert graph.name == "small"
    assert graph.nodes[0].inputs == ((-1, 3, 32, 32),)
    assert graph.nodes[0].outputs == ((-1, 8, 16, 16),)  # (32 + 2 - 3) // 2 + 1
    assert graph.nodes[0].parameters == ((8, 3, 3, 3), (8,))
    assert dict(graph.nodes[0].attributes)["strides"] == (2, 2)
    assert graph.producers == ((-1,),)
    assert graph.parameter_count == 224  # 8 * 3 * 3 * 3 + 8


@pytest.mark.parametrize("name", ["batch", "batch_size", "N", "s77", "whatever", None])
def test_a_free_first_dimension_is_the_batch(read: Maker, name: str | None) -> None:
    assert read({"x": [name, 5]}, [node("Relu", "x", "y")]).nodes[0].outputs == ((-1, 5),)


def test_the_batch_is_found_by_its_name_where_it_stands_second(read: Maker) -> None:
    graph = read({"x": ["seq", "batch", 5]}, [node("Relu", "x", "y")], shape={"seq": (7,)})
    assert graph.nodes[0].outputs == ((7, -1, 5),)


def test_terms_of_the_batch_and_of_other_dimensions_are_worked_out(read: Maker) -> None:
    graph = read(
        {"x": ["batch", "past + 1"], "c": ["2*batch", "past"]},
        [node("Relu", "c", "d"), node("Relu", "x", "y"), node("ReduceSum", "d", "e"), node("Add", "y e", "z")],
        shape={"past": (4,)},
    )
    assert graph.inputs == (("x", (-1, 5)), ("c", (-2, 4)))


def test_a_shape_for_a_whole_input_leaves_the_batch_out(read: Maker) -> None:
    graph = read({"x": ["batch", 3, "height", "width"]}, [node("Relu", "x", "y")], shape={"x": (3, 64, 48)})
    assert graph.inputs == (("x", (-1, 3, 64, 48)),)


@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        pytest.param({"x": (3, 64)}, "must fit the file's 3xheightx48; got 3x64", id="rank"),
        pytest.param({"x": (4, 64, 48)}, "must fit the file's 3xheightx48; got 4x64x48", id="a-fixed-size"),
        pytest.param({"z": (4,)}, "must name an input or a free dimension .* 'height', 'x'", id="no-such-name"),
        pytest.param({"height": (4, 4)}, "must get one size; got 2", id="two-for-one"),
        pytest.param({"height": (0,)}, "must be from 1", id="zero"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(read: Maker, shape: Mapping[str, Sequence[int]], rule: str) -> None:
    with pytest.raises(GraphError, match=rule):
        read({"x": ["batch", 3, "height", 48]}, [node("Relu", "x", "y")], shape=shape)


def test_two_sizes_that_nothing_names_are_two(read: Maker) -> None:
    """Paddle writes "?" for each: 3x48x192 was read as 3x192x192."""
    graph = read({"x": ["?", 3, "?", "?"]}, [node("Relu", "x", "y")], shape={"x": (3, 48, 192)})
    assert graph.inputs == (("x", (-1, 3, 48, 192)),)


def test_one_name_has_one_size(read: Maker) -> None:
    inputs, nodes = {"x": ["batch", "side", "side"], "z": ["batch", "side"]}, [node("Relu", "x", "y")]
    for shape in ({"x": (48, 192)}, {"x": (48, 48), "z": (192,)}, {"x": (48, 48), "side": (192,)}):
        with pytest.raises(GraphError, match=r"'side' of .* must have one size wherever it stands; got 48 and 192"):
            read(inputs, nodes, shape=shape)
    assert read(inputs, nodes, shape={"x": (48, 48), "z": (48,)}).inputs[1] == ("z", (-1, 48))


@pytest.mark.parametrize("places", [("unk__0", "unk__1"), ("unk__7", "unk__9")])
def test_each_input_of_a_file_of_tf2onnx_has_the_batch_under_a_name_of_its_own(
    read: Maker, places: tuple[str, str]
) -> None:
    graph = read({"x": [places[0], 5], "z": [places[1], 5]}, [node("Add", "x z", "y")])
    assert graph.inputs == (("x", (-1, 5)), ("z", (-1, 5)))


def test_the_number_in_a_name_of_tf2onnx_says_nothing(read: Maker) -> None:
    """The first number there is was taken for the batch wherever it stood."""
    graph = read({"x": ["unk__6", "unk__0"]}, [node("Relu", "x", "y")], shape={"unk__0": (10,)})
    assert graph.inputs == (("x", (-1, 10)),)


@pytest.mark.parametrize(
    ("sizes", "before"),
    [
        ((3, 9, 9), [node("Unsqueeze", "x zero", "u")]),
        ((9, 9, 3), [node("Transpose", "x", "t", perm=[2, 0, 1]), node("Unsqueeze", "t zero", "u")]),
    ],
    ids=["channels first", "channels last"],
)
def test_a_picture_without_a_batch_is_a_batch_of_one(read: Maker, sizes: tuple[int, ...], before: Nodes) -> None:
    """Its channels, or its height, were taken for the batch."""
    graph = read({"x": sizes}, [*before, node("Conv", "u w", "y")], [*weights(w=[8, 3, 3, 3]), numbers("zero", 0)])
    assert graph.fixed_batch_size == 1
    assert graph.notes == (FIXED_NOTE.format(1),)


def test_a_static_file_that_follows_the_batch_is_read_for_any(read: Maker) -> None:
    nodes = [node("Conv", "x w", "c", kernel_shape=[3, 3]), node("Flatten", "c", "f"), node("Gemm", "f v", "y")]
    graph = read({"x": [1, 3, 5, 5]}, nodes, weights(w=[4, 3, 3, 3], v=[36, 10]))
    assert graph.fixed_batch_size is None
    assert graph.nodes[-1].outputs == ((-1, 10),)
    assert graph.notes == ("The file was exported for batch size 1; every size in it still follows the batch.",)


@pytest.mark.parametrize(
    "target",
    [
        pytest.param((1, 6, 4), id="a-reshape-that-breaks"),
        pytest.param((1, -1, 4), id="a-reshape-that-takes-samples-for-rows"),
    ],
)
def test_a_static_file_with_its_batch_written_down_is_scaled(read: Maker, target: tuple[int, ...]) -> None:
    """Run at another batch it would break, or take samples for rows; each of its sizes begins with the batch."""
    nodes = [
        node("Reshape", "x target", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1]),
        node("MatMul", "r t", "y"),
    ]
    graph = read({"x": [1, 24]}, nodes, [numbers("target", *target)])
    assert graph.fixed_batch_size is None
    assert graph.nodes[-1].outputs == ((-1, 6, 6),)
    assert graph.notes == ("The file was exported for batch size 1; every size in it still follows the batch.",)


def test_a_static_file_whose_batch_leaves_the_first_axis_works_at_one_batch(read: Maker) -> None:
    nodes = [node("Reshape", "x target", "r"), node("Relu", "r", "y")]
    graph = read({"x": [1, 24]}, nodes, [numbers("target", 4, 6)])
    assert (graph.fixed_batch_size, graph.nodes[-1].outputs) == (1, ((4, 6),))
    assert graph.notes == (FIXED_NOTE.format(1),)


def test_a_file_that_claims_to_follow_the_batch_and_does_not_is_said_to_be_static(read: Maker) -> None:
    graph = read({"x": ["batch", 24]}, [node("Reshape", "x target", "y")], [numbers("target", 1, 24)])
    assert (graph.fixed_batch_size, graph.inputs) == (1, (("x", (1, 24)),))


def test_a_static_recurrent_model_has_the_batch_where_its_layers_have_it(read: Maker) -> None:
    lstm = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=6)
    graph = read({"x": [17, 2, 8]}, [lstm], weights(w=[1, 24, 8], r=[1, 24, 6]))
    assert (graph.fixed_batch_size, graph.nodes[0].outputs) == (2, ((17, 1, 2, 6),))


def test_arithmetic_on_shapes_costs_nothing_and_follows_the_batch(read: Maker) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s first", "b"),
        node("Concat", "b rest", "t", axis=0),
        node("Reshape", "x t", "y"),
    ]
    graph = read({"x": ["batch", 6, 4]}, nodes, [numbers("first", 0), numbers("rest", 2, -1)])
    assert op_types(graph) == ["Reshape"]
    assert graph.nodes[0].outputs == ((-1, 2, 12),)


def test_a_size_of_the_batch_squared_is_kept(read: Maker) -> None:
    graph = read({"x": ["batch", 4]}, [node("Transpose", "x", "t"), node("MatMul", "x t", "y")])
    assert graph.nodes[-1].outputs == ((-1, -1),)


def test_a_size_that_is_no_multiple_of_the_batch_is_rounded_up_and_said(read: Maker) -> None:
    graph = read({"x": ["batch", 4]}, [node("Concat", "x w", "y", axis=0)], weights(w=[1, 4]))
    assert graph.nodes[0].outputs == ((-2, 4),)  # batch + 1 is 9 at 8 and 13 at 12: both at most twice the batch
    assert graph.notes == ("Sizes that are no multiple of the batch were rounded up: 1 Concat.",)


def test_weights_that_are_shared_count_once_and_those_unused_not_at_all(read: Maker) -> None:
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "a w", "y")]
    assert read({"x": ["batch", 4]}, nodes, weights(w=[4, 4], unused=[99, 99])).parameter_count == 16


def test_a_weight_that_is_turned_is_a_weight_still(read: Maker) -> None:
    graph = read({"x": ["batch", 4]}, [node("Transpose", "w", "t"), node("MatMul", "x t", "y")], weights(w=[6, 4]))
    assert op_types(graph) == ["MatMul"]
    assert graph.nodes[0].parameters == ((4, 6),)
    assert graph.parameter_count == 24


def test_a_quantized_weight_counts_its_elements(read: Maker) -> None:
    packed = TensorProto(name="w", dims=[4, 6], data_type=TensorProto.INT8)
    nodes = [node("DequantizeLinear", "w s", "d"), node("MatMul", "x d", "y")]
    graph = read({"x": ["batch", 4]}, nodes, [packed, number("s", 0.5)])
    assert (op_types(graph), graph.nodes[0].parameters, graph.parameter_count) == (["MatMul"], ((4, 6),), 24)


def test_weights_in_constant_nodes_count(read: Maker) -> None:
    held = helper.make_tensor("w", TensorProto.FLOAT, [4, 2], [0.0] * 8)
    graph = read({"x": ["batch", 4]}, [node("Constant", "", "w", value=held), node("MatMul", "x w", "y")])
    assert (op_types(graph), graph.nodes[0].parameters, graph.parameter_count) == (["MatMul"], ((4, 2),), 8)


def test_running_figures_of_a_normalization_are_no_trained_weights(read: Maker) -> None:
    figures = weights(s=[4], b=[4], m=[4], v=[4])
    graph = read({"x": ["batch", 4, 5]}, [node("BatchNormalization", "x s b m v", "y")], figures)
    assert graph.parameter_count == 8


def test_constants_that_follow_the_batch_are_made_on_the_gpu(read: Maker) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("ConstantOfShape", "s", "z"),
        node("Add", "x z", "y"),
    ]
    graph = read({"x": ["batch", 1000]}, nodes)  # 8,000 numbers: too many to be known beforehand
    assert op_types(graph) == ["ConstantOfShape", "Add"]
    assert graph.nodes[0].inputs == ()
    assert graph.producers == ((), (-1, 0))


def test_what_no_output_needs_is_left_out(read: Maker) -> None:
    assert op_types(read({"x": ["batch", 4]}, [node("Tanh", "x", "t"), node("Relu", "x", "y")])) == ["Relu"]


def test_element_types_are_said_of_outputs(read: Maker) -> None:
    nodes = [node("Greater", "x zero", "m"), node("Cast", "m", "i", to=TensorProto.INT64), node("Gather", "w i", "y")]
    graph = read({"x": ["batch", 4]}, nodes, [*weights(w=[2, 8]), number("zero", 0.0)])
    assert [one.element_type for one in graph.nodes] == ["bool", "int64", "float"]


def test_a_function_of_the_file_runs_as_if_its_nodes_stood_there(read: Maker) -> None:
    inner = node("LeakyRelu", "a", "b")
    inner.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    body = [inner, node("Softmax", "b", "c", axis=-1)]
    function = helper.make_function("local", "Leaky", ["a"], ["c"], body, [helper.make_opsetid("", 18)], ["slope"])
    nodes = [node("Leaky", "x", "y", domain="local", slope=0.2), node("Leaky", "y", "z", domain="local", slope=0.3)]
    graph = read({"x": ["batch", 4]}, nodes, functions=[function])
    assert op_types(graph) == ["LeakyRelu", "Softmax", "LeakyRelu", "Softmax"]
    assert graph.producers == ((-1,), (0,), (1,), (2,))


def branch(name: str, nodes: Nodes) -> onnx.GraphProto:
    """Return a branch that gives its last node's output."""
    return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(nodes[-1].output[0])])


def choice(condition: str) -> onnx.NodeProto:
    """Return an If with a short and a long branch, both of which read from around them."""
    short = branch("short", [node("Relu", "x", "s")])
    long = branch("long", [node("Tanh", "x", "t"), node("Exp", "t", "l")])
    return node("If", condition, "y", then_branch=short, else_branch=long)


def test_functions_of_one_name_are_told_by_their_overload(read: Maker) -> None:
    opsets = [helper.make_opsetid("", 18)]
    functions = [
        helper.make_function("local", "F", ["a"], ["b"], [node(op_type, "a", "b")], opsets)
        for op_type in ("Relu", "Tanh")
    ]
    calls = [node("F", "x", "m", domain="local"), node("F", "m", "y", domain="local")]
    for one, function, call in zip(("first", "second"), functions, calls, strict=True):
        function.overload = call.overload = one
    assert op_types(read({"x": ["batch", 4]}, calls, functions=functions)) == ["Relu", "Tanh"]


def test_a_branch_that_is_known_beforehand_is_taken(read: Maker) -> None:
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    assert op_types(read({"x": ["batch", 4]}, [choice("yes")], [yes])) == ["Relu"]


def test_of_a_branch_that_depends_on_the_input_the_longer_one_counts(read: Maker) -> None:
    nodes = [node("ReduceSum", "x", "sum"), node("Cast", "sum", "test", to=TensorProto.BOOL), choice("test")]
    graph = read({"x": ["batch", 4]}, nodes)
    # The net that computes the condition counts as well.
    assert [one for one in op_types(graph) if one != "Reshape"] == ["ReduceSum", "Cast", "Tanh", "Exp"]


def test_operators_after_an_unknown_one_are_unknown_too_unless_the_file_says_its_shape(read: Maker) -> None:
    nodes = [node("Mystery", "x", "m", domain="com.acme"), node("Relu", "m", "y")]
    assert read({"x": ["batch", 4]}, nodes).unknown_op_types == (("Relu", 1), ("com.acme.Mystery", 1))


def test_a_softmax_made_safe_is_one_softmax(read: Maker) -> None:
    nodes = [
        node("Softmax", "x", "s", axis=-1),
        node("IsNaN", "s", "n"),
        node("Where", "n zero s", "w"),
        node("MatMul", "w v", "y"),
    ]
    graph = read({"x": ["batch", 4]}, nodes, [*weights(v=[4, 2]), number("zero", 0.0)])
    assert op_types(graph) == ["Softmax", "MatMul"]
    assert graph.producers == ((-1,), (0,))


ERF = [node("Div", "h root", "d"), node("Erf", "d", "e"), node("Add", "e one", "a")]


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param([node("Mul", "h a", "m"), node("Mul", "m half", "y")], id="half-last"),
        pytest.param([node("Mul", "a h", "m"), node("Mul", "m half", "y")], id="half-last-turned"),
        pytest.param([node("Mul", "h half", "m"), node("Mul", "m a", "y")], id="half-first"),
        pytest.param([node("Mul", "h half", "m"), node("Mul", "a m", "y")], id="half-first-turned"),
    ],
)
def test_a_gelu_taken_apart_is_put_back_together(read: Maker, tail: Nodes) -> None:
    constants = [number("root", 1.4142135), number("one", 1.0), number("half", 0.5)]
    graph = read({"x": ["batch", 4]}, [node("Relu", "x", "h"), *ERF, *tail], constants)
    assert op_types(graph) == ["Relu", "Gelu"]
    assert graph.nodes[1].inputs == ((-1, 4),)
    assert graph.producers == ((-1,), (0,))


@pytest.mark.parametrize(("gate", "whole"), [("Sigmoid", "Swish"), ("HardSigmoid", "HardSwish")])
def test_a_gate_on_itself_is_put_back_together(read: Maker, gate: str, whole: str) -> None:
    graph = read({"x": ["batch", 4]}, [node("Relu", "x", "h"), node(gate, "h", "g"), node("Mul", "h g", "y")])
    assert op_types(graph) == ["Relu", whole]


def test_a_gate_on_something_else_stays_as_it_is(read: Maker) -> None:
    graph = read({"x": ["batch", 4], "z": ["batch", 4]}, [node("Sigmoid", "x", "g"), node("Mul", "z g", "y")])
    assert op_types(graph) == ["Sigmoid", "Mul"]


@pytest.mark.parametrize("square", ["Pow", "Mul"])
def test_a_layer_normalization_taken_apart_is_put_back_together(read: Maker, square: str) -> None:
    nodes = [
        node("Relu", "x", "h"),
        node("ReduceMean", "h last", "mean"),
        node("Sub", "h mean", "c"),
        node(square, "c two" if square == "Pow" else "c c", "q"),
        node("ReduceMean", "q last", "variance"),
        node("Add", "variance epsilon", "v"),
        node("Sqrt", "v", "r"),
        node("Div", "c r", "n"),
        node("Mul", "n scale", "m"),
        node("Add", "m shift", "y"),
    ]
    constants = [*weights(scale=[8], shift=[8]), number("two", 2.0), number("epsilon", 1e-5), numbers("last", -1)]
    graph = read({"x": ["batch", 3, 8]}, nodes, constants)
    assert op_types(graph) == ["Relu", "LayerNormalization"]
    assert graph.nodes[1].parameters == ((8,), (8,))
    assert graph.producers == ((-1,), (0,))


@pytest.mark.parametrize(
    ("weight", "bias", "output"),
    [
        pytest.param("onnx::Conv_7", "onnx::Conv_8", "/conv/Conv_output_0", id="traced"),
        pytest.param("conv1.weight", "conv1.weight_bias", "getitem_3", id="exported"),
        pytest.param("conv1.weight", "", "getitem", id="exported-without-bias"),
        pytest.param("a/conv/merged_input:0", "a/bn/batchnorm/sub:0", "Conv__9:0", id="tf2onnx"),
    ],
)
def test_a_folded_normalization_is_put_back(read: Maker, weight: str, bias: str, output: str) -> None:
    tensors = weights(**{weight: [8, 3, 3, 3]} | ({bias: [8]} if bias else {}))
    nodes = [node("Conv", f"x {weight} {bias}", output, kernel_shape=[3, 3]), node("Relu", output, "y")]
    graph = read({"x": ["batch", 3, 8, 8]}, nodes, tensors)
    assert op_types(graph) == ["Conv", "BatchNormalization", "Relu"]
    assert graph.nodes[0].parameters == ((8, 3, 3, 3),)
    assert graph.parameter_count == 232  # 8 * 3 * 3 * 3 and a scale and a shift for each of 8 channels
    assert "folded 1 batch normalizations" in graph.notes[0]


def test_a_convolution_with_a_bias_of_its_own_is_left_alone(read: Maker) -> None:
    conv = node("Conv", "x features.0.weight features.0.bias", "conv2d", kernel_shape=[3, 3])
    tensors = weights(**{"features.0.weight": [8, 3, 3, 3], "features.0.bias": [8]})
    assert op_types(read({"x": ["batch", 3, 8, 8]}, [conv], tensors)) == ["Conv"]


def test_a_model_that_only_hands_on_its_input_is_refused(read: Maker) -> None:
    with pytest.raises(GraphError, match="must have at least one operation"):
        read({"x": ["batch", 4]}, [node("Identity", "x", "y")])


def test_an_input_without_a_shape_takes_the_users(read: Maker, tmp_path: Path) -> None:
    read({"x": ["batch", 4]}, [node("Relu", "x", "y")])
    model = onnx.load(read.path)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "bare.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(GraphError, match="must have a shape; the file gives none"):
        read_model(str(path), {})
    graph = read_model(str(path), {"x": (3, 8)})
    assert graph is not None
    assert graph.inputs == (("x", (-1, 3, 8)),)


def test_equal_nodes_are_one_object(read: Maker) -> None:
    graph = read({"x": ["batch", 4]}, [node("Relu", "x", "a"), node("Relu", "a", "y")])
    assert graph.nodes[0] is graph.nodes[1]


def test_a_model_that_takes_another_way_at_another_batch_size_works_at_one(tmp_path: Path) -> None:
    """Both branches split, into two parts or three; at 8 samples one is taken, at 12 the other."""
    limit = helper.make_tensor("limit", TensorProto.INT64, [], [10])
    zero = helper.make_tensor("zero", TensorProto.INT64, [], [0])
    branches = [
        helper.make_graph(
            [helper.make_node("Split", ["x"], [f"{count}_{part}" for part in range(count)], axis=1, num_outputs=count)],
            f"into_{count}",
            [],
            [helper.make_tensor_value_info(f"{count}_0", TensorProto.FLOAT, None)],
        )
        for count in (2, 3)
    ]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["size"], axis=0),
        helper.make_node("Greater", ["size", "limit"], ["is_large"]),
        helper.make_node("If", ["is_large"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [limit, zero])
    path = tmp_path / "ways.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    read = read_model(str(path), {})
    assert read is not None
    assert read.fixed_batch_size == 1
    assert read.nodes[0].outputs == ((1, 2), (1, 2), (1, 2))


@pytest.mark.parametrize(
    ("nodes", "counts"),
    [
        # weights of 8 bits that are widened once, as a file of weights alone has them
        ([node("DequantizeLinear", "w scale", "v"), node("MatMul", "x v", "y")], {"DequantizeLinear": 1}),
        # both sides, as static quantisation writes them
        (
            [
                node("QuantizeLinear", "x scale", "a"),
                node("DequantizeLinear", "a scale", "b"),
                node("DequantizeLinear", "w scale", "v"),
                node("MatMul", "b v", "y"),
            ],
            {"DequantizeLinear": 2, "QuantizeLinear": 1},
        ),
        ([node("MatMulInteger", "x w", "y")], {"MatMulInteger": 1}),
    ],
)
def test_a_quantised_file_says_so_and_is_not_familiar(read: Maker, nodes: Nodes, counts: dict[str, int]) -> None:
    weight = TensorProto(name="w", dims=(64, 64), data_type=TensorProto.INT8)
    graph = read({"x": ("batch", 64)}, nodes, [weight, number("scale", 0.1)])
    assert dict(graph.unknown_op_types) == counts
    assert graph.parameter_count >= 64 * 64
    assert graph.precision == "int8"
    assert "Its weights are quantised" in graph.notes[-1]
    (need,) = predicted(graph, Workload(mode="infer"), [builtin_catalogue().find("a100")])
    assert not need.familiar


def test_rounding_to_8_bits_and_back_is_a_part_of_the_kernels_beside_it(read: Maker) -> None:
    pair = [node("QuantizeLinear", "x scale", "a"), node("DequantizeLinear", "a scale", "b")]
    product = [node("DequantizeLinear", "w scale", "v"), node("MatMul", "b v", "y")]
    weight = TensorProto(name="w", dims=(64, 64), data_type=TensorProto.INT8)
    graph = read({"x": ("batch", 64)}, [*pair, *product], [weight, number("scale", 0.1)])
    kernels = analyze(graph, Workload(mode="infer", precision="int8", batch_size=4)).kernels
    # one product: it reads and writes 4 x 64 numbers of two bytes, and weights of two, as it makes the model's outputs
    assert kernels.traffic_bytes.tolist() == [2 * 4 * 64 * 2 + 64 * 64 * 2]


@pytest.mark.parametrize(
    ("head", "precision"),
    [
        ([node("MatMul", "b g", "y")], "int8"),  # the output layer alone is of floats, as many quantisers leave it
        ([node("MatMul", "b f", "c"), node("MatMul", "c g", "y")], None),
    ],
)
def test_a_file_of_which_a_part_is_quantised_counts_as_floats(read: Maker, head: Nodes, precision: str | None) -> None:
    """A single quantised operator made each weight count as one byte, a quarter of what it takes."""
    nodes = [node("DequantizeLinear", "w scale", "v"), node("MatMul", "x v", "b"), *head]
    weight = TensorProto(name="w", dims=(64, 64), data_type=TensorProto.INT8)
    floats = [TensorProto(name=name, dims=(64, 64), data_type=TensorProto.FLOAT) for name in "fg"]
    graph = read({"x": ("batch", 64)}, nodes, [weight, *floats[2 - len(head) :], number("scale", 0.1)])
    assert graph.precision == precision
    assert ("A part of the file is quantised" in graph.notes[-1]) == (precision is None)


def test_a_convolution_of_8_bits_has_weights_of_one_byte(read: Maker) -> None:
    nodes = [
        node("DequantizeLinear", "w scale", "v"),
        node("Conv", "x v", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "y"),
    ]
    weight = TensorProto(name="w", dims=(64, 64, 3, 3), data_type=TensorProto.INT8)
    graph = read({"x": ("batch", 64, 56, 56)}, nodes, [weight, number("scale", 0.1)])
    run = with_model_settings(Workload(mode="infer"), (), graph)
    lowering = lower(graph, analyze_structure(graph), run)
    assert lowering.parameter_bytes.max() == 64 * 64 * 9  # a byte each
    assert weight_memory_bytes(lowering, run.precision) == pytest.approx(64 * 64 * 9, abs=8)  # and the scale
