"""Two runs at two batch sizes as one, and what of a run is needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gpusage.graphs.batch_sizes import ModelRun, merge_runs, scale_one_batch, to_graph, without_dead_nodes
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Attribute, Node, Shape

BATCHES = (8, 12)


def run_of(*outputs: Shape, input_shape: Shape = (1,), attributes: tuple[tuple[str, Attribute], ...] = ()) -> ModelRun:
    """Return a run of nodes one after another, each with one of *outputs*, on an input of *input_shape*."""
    inputs = (input_shape, *outputs[:-1])
    nodes = tuple(
        Node(op_type="Relu", inputs=(read,), outputs=(made,), attributes=attributes)
        for read, made in zip(inputs, outputs, strict=True)
    )
    producers = tuple((index - 1,) for index in range(len(nodes)))
    return ModelRun(nodes=nodes, producers=producers, inputs=(("x", input_shape),), results=(len(nodes) - 1,))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param((5, 5), 5, id="fixed"),
        pytest.param((8, 12), -1, id="the-batch"),
        pytest.param((24, 36), -3, id="a-multiple"),
        pytest.param((0, 0), 0, id="nothing"),
    ],
)
def test_a_size_is_fixed_or_a_multiple_of_the_batch(sizes: tuple[int, int], expected: int) -> None:
    merged = merge_runs(*(run_of((size, 7)) for size in sizes), BATCHES)
    assert merged is not None
    assert merged.run.nodes[0].outputs == ((expected, 7),)
    assert (merged.uneven, merged.squared) == (Counter(), Counter())


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param((9, 13), -2, id="one-more"),  # 9/8 and 13/12, rounded up
        pytest.param((4, 6), -1, id="half"),
        pytest.param((16, 25), -3, id="nearly"),  # 25/12 is the larger quotient
        pytest.param((64, 144), -12, id="square"),  # 144/12 is the larger quotient
    ],
)
def test_a_size_that_does_not_follow_is_rounded_up_and_counted(sizes: tuple[int, int], expected: int) -> None:
    merged = merge_runs(*(run_of((size, 7)) for size in sizes), BATCHES)
    assert merged is not None
    assert merged.run.nodes[0].outputs == ((expected, 7),)
    assert merged.uneven == {"Relu": 1}


def test_a_tensor_that_grows_with_the_square_of_the_batch_is_counted() -> None:
    merged = merge_runs(run_of((8, 16)), run_of((12, 24)), BATCHES)
    assert merged is not None
    assert merged.run.nodes[0].outputs == ((-1, -2),)
    assert (merged.uneven, merged.squared) == (Counter(), {"Relu": 1})


def test_inputs_follow_the_batch_as_nodes_do() -> None:
    merged = merge_runs(run_of((4,), input_shape=(8, 3)), run_of((4,), input_shape=(12, 3)), BATCHES)
    assert merged is not None
    assert merged.run.inputs == (("x", (-1, 3)),)
    assert merged.run.nodes[0].inputs == ((-1, 3),)


def test_an_attribute_that_differs_is_left_out() -> None:
    runs = (run_of((batch,), attributes=(("axis", 1), ("batch", batch))) for batch in BATCHES)
    merged = merge_runs(*runs, BATCHES)
    assert merged is not None
    assert merged.run.nodes[0].attributes == (("axis", 1),)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(run_of((12,), (12,)), id="more-nodes"),
        pytest.param(run_of((12, 1)), id="more-dimensions"),
        pytest.param(run_of((12,), input_shape=(1, 1)), id="another-input"),
        pytest.param(
            replace(run_of((12,)), nodes=(replace(run_of((12,)).nodes[0], op_type="Elu"),)), id="another-operator"
        ),
        pytest.param(replace(run_of((12,)), producers=((-2,),)), id="another-producer"),
    ],
)
def test_runs_that_differ_in_more_than_sizes_are_not_merged(other: ModelRun) -> None:
    assert merge_runs(run_of((8,)), other, BATCHES) is None


def test_equal_nodes_are_one_object() -> None:
    merged = merge_runs(run_of((8,), (8,), (8,)), run_of((12,), (12,), (12,)), BATCHES)
    assert merged is not None
    assert merged.run.nodes[1] is merged.run.nodes[2]


def test_a_model_is_played_at_both_batch_sizes() -> None:
    merged = merge_runs(run_of((2, 6)), run_of((3, 9)), (2, 3))
    assert merged is not None
    assert merged.run.nodes[0].outputs == ((-1, -3),)


def test_what_no_result_needs_is_left_out() -> None:
    run = run_of((1,), (2,), (3,), (4,))
    forked = replace(run, producers=((-1,), (0,), (0,), (2,)))  # nobody reads node 1
    needed = without_dead_nodes(forked)
    assert [node.outputs for node in needed.nodes] == [((1,),), ((3,),), ((4,),)]
    assert (needed.producers, needed.results) == (((-1,), (0,), (1,)), (2,))


def test_where_there_are_no_results_all_is_needed() -> None:
    run = replace(run_of((1,), (2,)), results=())
    assert without_dead_nodes(run) == run


def test_a_run_of_nothing_is_no_graph() -> None:
    nothing = ModelRun(nodes=(), producers=(), inputs=())
    with pytest.raises(GraphError, match=r"'x\.onnx' must have at least one operation on its inputs; got none"):
        to_graph(nothing, name="x", source="x.onnx", parameter_count=0)


def test_a_run_whose_first_sizes_are_the_batch_is_scaled_and_a_mask_of_its_own_is_not() -> None:
    mask = Node(op_type="Range", outputs=((5, 5),))
    read = Node(op_type="Add", inputs=((4, 5), (5, 5)), outputs=((4, 5),))
    run = ModelRun(nodes=(mask, read), producers=((), (-1, 0)), inputs=(("x", (4, 5)),), results=(1,))
    scaled = scale_one_batch(run, 4)
    assert scaled is not None
    assert scaled.nodes == (mask, replace(read, inputs=((-1, 5), (5, 5)), outputs=((-1, 5),)))
    assert scaled.inputs == (("x", (-1, 5)),)


@pytest.mark.parametrize("output", [(5, 4), (), (8, 2)])
def test_a_run_in_which_the_batch_leaves_the_first_axis_is_not_scaled(output: Shape) -> None:
    assert scale_one_batch(run_of((4, 5), output, input_shape=(4, 5)), 4) is None
