"""Loops of a file run as often as they turn; one that nobody can count is one unknown operator."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gpusage.graphs.onnx.reader import read_model
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph

WEIGHT = TensorProto(name="w", dims=(16, 16), data_type=TensorProto.FLOAT)


def value(name: str, kind: int = TensorProto.FLOAT, sizes: list[object] | None = None) -> onnx.ValueInfoProto:
    """Return a declared value."""
    return helper.make_tensor_value_info(name, kind, sizes)


def integer_tensor(name: str, number: int) -> onnx.TensorProto:
    """Return a whole number."""
    return helper.make_tensor(name, TensorProto.INT64, [], [number])


def read(
    path: Path, nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto], inputs: dict[str, list[object]]
) -> ModelGraph:
    """Return what is read of a model that returns ``y``."""
    values = [value(name, sizes=sizes) for name, sizes in inputs.items()]
    graph = helper.make_graph(nodes, "g", values, [value("y")], tensors)
    file = path / "loop.onnx"
    file.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
    model_graph = read_model(str(file), {})
    assert model_graph is not None
    return model_graph


def body(goes_on: list[onnx.NodeProto], *tensors: onnx.TensorProto) -> onnx.GraphProto:
    """Return a turn that multiplies the state by a weight from outside, and keeps a copy of it."""
    nodes = [*goes_on, helper.make_node("MatMul", ["state", "w"], ["m"]), helper.make_node("Relu", ["m"], ["next"])]
    inputs = [value("turn", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("state")]
    outputs = [value("still", TensorProto.BOOL), value("next"), value("row")]
    return helper.make_graph(
        [*nodes, helper.make_node("Identity", ["next"], ["row"])], "body", inputs, outputs, tensors
    )


def test_a_loop_that_is_counted_beforehand_runs_so_often(tmp_path: Path) -> None:
    turn = body([helper.make_node("Identity", ["go"], ["still"])])
    nodes = [
        helper.make_node("Relu", ["x"], ["start"]),
        helper.make_node("Loop", ["count", "", "start"], ["last", "rows"], body=turn),
        helper.make_node("ReduceSum", ["rows"], ["y"], keepdims=0),
    ]
    graph = read(tmp_path, nodes, [WEIGHT, integer_tensor("count", 5)], {"x": ["batch", 16]})
    kinds = [node.op_type for node in graph.nodes]
    assert (kinds.count("MatMul"), kinds.count("Relu"), kinds.count("Concat")) == (5, 6, 1)
    assert graph.nodes[kinds.index("ReduceSum")].inputs[0] == (5, -1, 16)  # a row of every turn
    assert graph.parameter_count == 16 * 16  # one weight, however often it is read
    assert not graph.unknown_op_types


def test_a_loop_ends_when_its_condition_says_so(tmp_path: Path) -> None:
    """TensorFlow's loops name no count of use, and ask at the end of each turn."""
    condition = [helper.make_node("Less", ["turn", "three"], ["still"])]
    loop = helper.make_node("Loop", ["count", "", "x"], ["y", ""], body=body(condition, integer_tensor("three", 3)))
    graph = read(tmp_path, [loop], [WEIGHT, integer_tensor("count", 2**62)], {"x": ["batch", 16]})
    assert [node.op_type for node in graph.nodes].count("MatMul") == 4  # after the turns 0, 1 and 2 it went on


def scan(**attributes: object) -> onnx.NodeProto:
    """Return a scan over x, whose turn adds a row of it to the state."""
    turn = helper.make_graph(
        [helper.make_node("Add", ["state", "row"], ["next"])],
        "body",
        [value("state"), value("row")],
        [value("next")],
    )
    return helper.make_node("Scan", ["start", "x"], ["y"], body=turn, num_scan_inputs=1, **attributes)


def test_a_scan_turns_once_for_each_row(tmp_path: Path) -> None:
    nodes = [helper.make_node("ReduceMax", ["x", "one"], ["start"], keepdims=0), scan(scan_input_axes=[1])]
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    graph = read(tmp_path, nodes, [one], {"x": ["batch", 7, 16]})
    added = [node for node in graph.nodes if node.op_type == "Add"]
    assert len(added) == 7
    assert added[-1].inputs == ((-1, 16), (-1, 16))


@pytest.mark.parametrize("count", [2**62, 100_000])
def test_a_loop_without_a_known_end_is_one_unknown_operator_and_what_it_reads_is_kept(
    tmp_path: Path, count: int
) -> None:
    """What a loop's body read from around it was taken for dead: an LSTM before the loop was not predicted."""
    turn = body([helper.make_node("ReduceMax", ["outside"], ["high"], keepdims=0), *_condition_on_data("high")])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["outside"]),
        helper.make_node("Loop", ["count", "", "x"], ["y", ""], body=turn),
    ]
    graph = read(tmp_path, nodes, [WEIGHT, integer_tensor("count", count)], {"x": ["batch", 16]})
    assert dict(graph.unknown_op_types) == {"Loop": 1}
    assert [node.op_type for node in graph.nodes] == ["MatMul", "Loop"]
    assert "1 Loop" in graph.notes[0]


def test_a_loop_whose_turns_hand_on_too_little_is_refused(tmp_path: Path) -> None:
    """It ended in an IndexError."""
    inputs = [value("turn", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("state")]
    turn = helper.make_graph([], "body", inputs, [])
    loop = helper.make_node("Loop", ["count", "", "x"], ["y"], body=turn)
    with pytest.raises(GraphError, match="Loop"):
        read(tmp_path, [loop], [integer_tensor("count", 3)], {"x": ["batch", 16]})


@pytest.mark.parametrize("count", [float("nan"), float("inf")])
def test_a_loop_that_turns_as_often_as_no_number_is_one_unknown_operator(tmp_path: Path, count: float) -> None:
    turn = body([helper.make_node("Identity", ["go"], ["still"])])
    loop = helper.make_node("Loop", ["count", "", "x"], ["y", ""], body=turn)
    times = helper.make_tensor("count", TensorProto.FLOAT, [], [count])
    assert dict(read(tmp_path, [loop], [WEIGHT, times], {"x": ["batch", 16]}).unknown_op_types) == {"Loop": 1}


def _condition_on_data(name: str) -> list[onnx.NodeProto]:
    """Return a condition that depends on what a user feeds in."""
    return [helper.make_node("Cast", [name], ["still"], to=TensorProto.BOOL)]
