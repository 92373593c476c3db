"""A graph network's list of edges has two rows, whatever the batch: one step is of one graph."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import gpusage
from gpusage.graphs.batch_sizes import edge_list_inputs, is_edge_list
from gpusage.graphs.onnx.reader import read_model
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph


def read(path: Path, nodes: object, edges: object, shape: dict[str, tuple[int, ...]]) -> ModelGraph:
    """Return a layer that gathers the features of where each edge starts; the list of edges is its first input."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, (16, 32), [0.0] * 512)
    zero = helper.make_tensor("zero", TensorProto.INT64, (), [0])
    inputs = [
        helper.make_tensor_value_info("edge_index", TensorProto.INT64, [2, edges]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [nodes, 16]),
    ]
    steps = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Gather", ["edge_index", "zero"], ["start"], axis=0),
        helper.make_node("Gather", ["h", "start"], ["y"], axis=0),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(steps, "gat", inputs, outputs, [weight, zero])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path / "gat.onnx"))
    model_graph = read_model(str(path / "gat.onnx"), shape)
    assert model_graph is not None
    return model_graph


@pytest.mark.parametrize(
    ("sizes", "shape"), [((100, 500), {}), (("nodes", "edges"), {"nodes": (100,), "edges": (500,)})]
)
def test_the_two_rows_of_an_edge_list_are_no_batch(
    tmp_path: Path, sizes: tuple[object, object], shape: dict[str, tuple[int, ...]]
) -> None:
    graph = read(tmp_path, *sizes, shape)
    assert graph.fixed_batch_size == 1
    assert graph.nodes[-1].outputs == ((500, 32),)
    assert "a step is of one such graph" in graph.notes[0]
    assert gpusage.predict(graph, gpu="a100").step_time_s.value > 0


def test_free_sizes_of_a_graph_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"--shape edges=128 --shape nodes=128"):
        read(tmp_path, "nodes", "edges", {})


@pytest.mark.torch
def test_a_module_that_reads_a_graph_does_so_once() -> None:
    torch = pytest.importorskip("torch")

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined] - torch may not be installed
        """Gathers the features of where each edge starts."""

        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(16, 32)

        def forward(self, edge_index: object, x: object) -> object:
            """Return a row for each edge."""
            return self.dense(x)[edge_index[0]]  # type: ignore[index]

    edges, nodes = torch.zeros(2, 500, dtype=torch.int64), torch.zeros(100, 16)
    graph = gpusage.read_model(Layer(), {"edge_index": edges, "x": nodes})
    assert graph.fixed_batch_size == 1
    assert graph.nodes[-1].outputs == ((500, 32),)
    assert graph == gpusage.read_model(Layer(), (edges, nodes))


@pytest.mark.parametrize(
    "name", ["edge_index", "edgeIndex", "edges", "graph.edge_index", "adj", "adj_t", "adjacency", "x_edge"]
)
def test_edges_are_known_by_their_names(name: str) -> None:
    assert is_edge_list(name, [2, 500], is_integer=True)


@pytest.mark.parametrize("name", ["knowledge_ids", "hedged", "ledger", "adjusted_ids", "badge_ids", "input_ids"])
def test_a_batch_of_two_is_no_list_of_edges(name: str) -> None:
    """Taken for one, it would be predicted at batch 1 whatever its user's batch."""
    assert not is_edge_list(name, [2, 500], is_integer=True)


def test_two_inputs_may_list_where_edges_start_and_where_they_end() -> None:
    """Nodes were taken for the batch, and edges, which cost most, did not grow with it."""
    ends = [("x", (100, 16), False), ("src", (500,), True), ("dst", (500,), True)]
    assert edge_list_inputs(ends) == "src and dst"
    assert edge_list_inputs(ends[:2]) == ""
    assert edge_list_inputs([("src", (8, 500), True), ("dst", (8, 500), True)]) == ""  # sentences in two languages


@pytest.mark.torch
def test_a_program_that_reads_a_graph_does_so_once(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined] - torch may not be installed
        """Gathers the features of where each edge starts."""

        def forward(self, x: object, src: object, dst: object) -> object:
            """Return a row for each node."""
            return torch.zeros_like(x).index_add(0, dst, x[src])  # type: ignore[index]

    edges = torch.zeros(500, dtype=torch.int64)
    free = {name: {0: torch.export.Dim.DYNAMIC} for name in ("x", "src", "dst")}
    program = torch.export.export(Layer(), (torch.zeros(100, 16), edges, edges + 1), dynamic_shapes=free)
    torch.export.save(program, str(tmp_path / "gat.pt2"))
    graph = gpusage.read_model(str(tmp_path / "gat.pt2"))
    assert graph.fixed_batch_size == 1
    assert graph.inputs == (("x", (100, 16)), ("src", (500,)), ("dst", (500,)))
    assert "a step is of one such graph" in graph.notes[0]
