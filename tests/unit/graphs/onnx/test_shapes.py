"""Every operator's shapes against the ONNX project's own inference, which is an outside oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference

from gpusage.graphs.model_files import open_regular_file
from gpusage.graphs.onnx.file import read_file
from gpusage.graphs.onnx.inputs import bind_inputs
from gpusage.graphs.onnx.shape_inference import infer

MODELS = Path(__file__).parents[4] / "examples" / "models"
PICTURE = (2, 4, 9, 11)
ROWS = (2, 5, 8)


def case(op_type: str, *inputs: object, opset: int = 20, outputs: int = 1, **attributes: object) -> object:
    """Return a test case; a tuple is an input's shape, a list a constant of whole numbers, a dict one of real ones."""
    words = "-".join([op_type, str(opset), *map(str, attributes.values())]).replace(" ", "")
    return pytest.param(op_type, inputs, opset, outputs, attributes, id=words)


CASES = [
    *(
        case(name, PICTURE)
        for name in ("Relu", "Tanh", "Erf", "Sigmoid", "HardSwish", "Elu", "Softplus", "Gelu", "Mish")
    ),
    *(case(name, PICTURE) for name in ("Neg", "Floor", "Sqrt", "IsNaN", "Identity", "LogSoftmax", "GlobalAveragePool")),
    *(case(name, (3, 1, 5), (4, 1)) for name in ("Add", "Mul", "Div", "Pow", "Equal", "Less", "Max", "Sum")),
    case("Where", (1, 5), (3, 1), (2, 3, 5)),
    case("Conv", PICTURE, (6, 4, 3, 3)),
    case("Conv", PICTURE, (6, 2, 3, 3), group=2, strides=[2, 2], pads=[1, 0, 1, 2], dilations=[2, 1]),
    case("Conv", PICTURE, (6, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    case("Conv", PICTURE, (6, 4, 3, 3), auto_pad="VALID"),
    case("Conv", (2, 4, 33), (8, 4, 5), strides=[3]),
    case("ConvTranspose", PICTURE, (4, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    case("ConvTranspose", PICTURE, (4, 3, 3, 3), group=2, dilations=[2, 2]),
    case("ConvTranspose", PICTURE, (4, 3, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    case("MaxPool", PICTURE, kernel_shape=[3, 3], strides=[2, 2]),
    case("MaxPool", PICTURE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, outputs=2),
    case("MaxPool", PICTURE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
    case("AveragePool", PICTURE, kernel_shape=[3, 2], ceil_mode=1, strides=[3, 3]),
    case("MatMul", (2, 3, 4, 5), (3, 5, 6)),
    case("MatMul", (5,), (3, 5, 6)),
    case("MatMul", (3, 4, 5), (5,)),
    case("MatMul", (5,), (5,)),
    case("Gemm", (3, 4), (4, 5), (5,)),
    case("Gemm", (4, 3), (5, 4), transA=1, transB=1),
    case("Einsum", (2, 3, 4), (2, 4, 5), equation="bij,bjk->bik"),
    case("Einsum", (2, 3, 4, 5), (2, 3, 6, 5), equation="...ij,...kj->...ik"),
    case("BatchNormalization", PICTURE, (4,), (4,), (4,), (4,)),
    case("LayerNormalization", ROWS, (8,), (8,), axis=-1, outputs=3),
    case("InstanceNormalization", PICTURE, (4,), (4,)),
    case("LSTM", (7, 2, 8), (1, 24, 8), (1, 24, 6), hidden_size=6, outputs=3),
    case("GRU", (7, 2, 8), (2, 18, 8), (2, 18, 6), hidden_size=6, direction="bidirectional", outputs=2),
    case("LSTM", (2, 7, 8), (1, 24, 8), (1, 24, 6), hidden_size=6, layout=1, outputs=2),
    case("Softmax", ROWS, axis=-1),
    case("Reshape", ROWS, [0, -1]),
    case("Reshape", ROWS, [10, 2, 4]),
    case("Reshape", (0, 3), [0, 7], allowzero=1),
    case("Flatten", PICTURE, axis=2),
    case("Flatten", PICTURE, axis=0),
    case("Squeeze", (1, 3, 1), [0, -1]),
    case("Squeeze", (1, 3, 1), [2]),
    case("Squeeze", (1, 3, 1), opset=11, axes=[0]),
    case("Unsqueeze", (3, 4), [0, -1]),
    case("Unsqueeze", (3, 4), opset=11, axes=[1]),
    case("Transpose", ROWS, perm=[2, 0, 1]),
    case("Transpose", ROWS),
    case("Concat", (2, 3), (2, 5), axis=-1),
    case("Split", (2, 10), outputs=3, num_outputs=3, axis=1),
    case("Split", (2, 10), [3, 7], outputs=2, axis=-1),
    case("Split", (2, 10), outputs=2, axis=1, opset=11, split=[4, 6]),
    case("Slice", (5, 7), [1, -5], [4, 100], [0, 1], [1, 2]),
    case("Slice", (5, 7), [-1], [-100], [1], [-1]),
    case("Slice", (5, 7), opset=9, starts=[1], ends=[-1], axes=[1]),
    case("Gather", (5, 7), (2, 3), axis=1),
    case("Gather", (5, 7), [3], axis=0),
    case("GatherElements", (5, 7), (2, 7), axis=0),
    case("GatherND", (5, 7, 3), (4, 2)),
    case("GatherND", (5, 7, 3), (5, 4, 1), batch_dims=1),
    case("Expand", (3, 1), [2, 1, 6]),
    case("Tile", (3, 2), [2, 4]),
    case("Pad", PICTURE, [0, 0, 1, 2, 0, 0, 3, 4]),
    case("Pad", PICTURE, opset=10, pads=[0, 0, 1, 2, 0, 0, 3, 4]),
    case("DepthToSpace", (2, 8, 3, 3), blocksize=2),
    case("SpaceToDepth", (2, 3, 4, 4), blocksize=2),
    case("Resize", PICTURE, None, {"scales": [1.0, 1.0, 2.0, 0.5]}),
    case("Resize", PICTURE, None, None, [2, 4, 18, 5]),
    case("Upsample", PICTURE, {"scales": [1.0, 1.0, 2.0, 2.0]}, opset=9),
    case("Upsample", PICTURE, opset=7, scales=[1.0, 1.0, 2.0, 2.0]),
    case("Constant", value_floats=[1.0, 2.0]),
    case("Constant", value_ints=[1, 2, 3]),
    case("Constant", value_float=1.0),
    case("GridSample", PICTURE, (2, 6, 7, 2)),
    case("TopK", (3, 9), [4], outputs=2),
    case("ArgMax", ROWS, axis=1, keepdims=0),
    case("ReduceMean", ROWS, [1], keepdims=0),
    case("ReduceMean", ROWS, opset=13, axes=[0, 2]),
    case("ReduceSum", ROWS),
    case("ReduceSum", ROWS, noop_with_empty_axes=1),
    case("Cast", ROWS, to=TensorProto.INT64),
    case("ConstantOfShape", [2, 3]),
    case("Shape", ROWS),
    case("Shape", ROWS, start=-2),
    case("Size", ROWS),
    case("CumSum", ROWS, [1]),
    case("Dropout", ROWS, outputs=2),
    case("Clip", ROWS),
    case("PRelu", PICTURE, (4, 1, 1)),
    case("EyeLike", (3, 4)),
    case("Trilu", (3, 4)),
    case("DequantizeLinear", (3, 4), ()),
]


def single(
    op_type: str, inputs: tuple[Any, ...], opset: int, outputs: int, attributes: dict[str, Any]
) -> onnx.ModelProto:
    """Return a model of one operator."""
    names, values, tensors = [], [], []
    boolean = {("Where", 0)}
    for place, one in enumerate(inputs):
        name = f"i{place}" if one is not None else ""
        names.append(name)
        if isinstance(one, tuple):
            indices = op_type.startswith("Gather") and place == 1
            kind = TensorProto.INT64 if indices else TensorProto.FLOAT
            kind = TensorProto.BOOL if (op_type, place) in boolean else kind
            kind = TensorProto.INT8 if op_type == "DequantizeLinear" and place == 0 else kind
            values.append(helper.make_tensor_value_info(name, kind, one))
        elif isinstance(one, list):
            tensors.append(helper.make_tensor(name, TensorProto.INT64, [len(one)], one))
        elif isinstance(one, dict):
            tensors.append(helper.make_tensor(name, TensorProto.FLOAT, [4], one["scales"]))
    results = [f"o{number}" for number in range(outputs)]
    node = helper.make_node(op_type, names, results, **attributes)
    empty = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], "g", values, empty, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def shapes_of(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return what the ONNX project infers, where it is certain."""
    inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    known = {}
    for value in [*inferred.graph.value_info, *inferred.graph.output]:
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            known[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return known


@pytest.mark.parametrize(("op_type", "inputs", "opset", "outputs", "attributes"), CASES)
def test_an_operators_shapes_are_those_of_the_onnx_project(
    tmp_path: Path, op_type: str, inputs: tuple[Any, ...], opset: int, outputs: int, attributes: dict[str, Any]
) -> None:
    model = single(op_type, inputs, opset, outputs, attributes)
    expected = shapes_of(model)
    assert set(expected) == {f"o{number}" for number in range(outputs)}
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with open_regular_file(str(path)) as descriptor:
        read = read_file(str(path), descriptor)
        shapes = {one.name: tuple(one.sizes or ()) for one in read.graph.inputs}
        trace = infer(read, shapes, {})
    assert trace.steps[0].known
    assert {f"o{number}": value.shape for number, value in enumerate(trace.steps[0].outputs)} == expected


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.stem)
def test_an_example_models_shapes_are_those_of_the_onnx_project(path: Path) -> None:
    with open_regular_file(str(path)) as descriptor:
        read = read_file(str(path), descriptor)
        binding = bind_inputs(read.graph.inputs, {}, str(path))
        trace = infer(read, binding.shapes(8), binding.symbols(8))
    model = onnx.load(path, load_external_data=False)
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = 8
    del model.graph.value_info[:]  # what the exporter knew; the oracle is to find it anew
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    expected = shapes_of(model)
    compared = 0
    for node, step in zip(model.graph.node, trace.steps, strict=True):
        for name, value in zip(node.output, step.outputs, strict=True):
            if name in expected:
                assert (name, value.shape) == (name, expected[name])
                compared += 1
    assert compared >= 0.8 * len(trace.steps)


NUMBERS = [
    ("Add", [[1, 2], [10]], [11, 12]),
    ("Sub", [[5], [7]], [-2]),
    ("Mul", [[3, 4], [2, 5]], [6, 20]),
    ("Div", [[7, -7], [2, 2]], [3, -3]),
    ("Mod", [[7], [4]], [3]),
    ("Min", [[7, 1], [4, 4]], [4, 1]),
    ("Max", [[7, 1], [4, 4]], [7, 4]),
    ("Concat", [[1, 2], [3]], [1, 2, 3]),
    ("Gather", [[5, 6, 7], [2, -3]], [7, 5]),
    ("Slice", [[5, 6, 7], [-2], [9]], [6, 7]),
    ("Slice", [[5, 6, 7], [-1], [-9], [0], [-1]], [7, 6, 5]),
    ("Expand", [[4], [3]], [4, 4, 4]),
    ("Tile", [[4, 5], [2]], [4, 5, 4, 5]),
    ("ConstantOfShape", [[2]], [0, 0]),
    ("ReduceProd", [[2, 3, 4]], [24]),
    ("Neg", [[2]], [-2]),
]


@pytest.mark.parametrize(("op_type", "inputs", "expected"), NUMBERS, ids=lambda value: str(value).replace(" ", ""))
def test_numbers_that_shapes_are_computed_from_are_worked_out(
    tmp_path: Path, op_type: str, inputs: list[list[int]], expected: list[int]
) -> None:
    attributes = {"axis": 0} if op_type in {"Concat", "Gather"} else {}
    path = tmp_path / "m.onnx"
    path.write_bytes(single(op_type, tuple(inputs), 18, 1, attributes).SerializeToString())
    with open_regular_file(str(path)) as descriptor:
        trace = infer(read_file(str(path), descriptor), {}, {})
    assert list(trace.steps[0].outputs[0].elements or ()) == expected


def test_a_turned_table_keeps_its_numbers(tmp_path: Path) -> None:
    table = numpy_helper.from_array(np.arange(6).reshape(2, 3), "t")
    node = helper.make_node("Transpose", ["t"], ["o0"], perm=[1, 0])
    graph = helper.make_graph([node], "g", [], [helper.make_empty_tensor_value_info("o0")], [table])
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    with open_regular_file(str(path)) as descriptor:
        trace = infer(read_file(str(path), descriptor), {}, {})
    assert trace.steps[0].outputs[0].elements == (0, 3, 1, 4, 2, 5)
