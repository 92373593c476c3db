"""The walk: what waits for the backward pass, what lives at once, and the terms that memory is a sum of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.memory.liveness import TRAINING_TERMS, Walk, terms, walk
from gpusage.predictors.memory.peak import FITTED_CONTEXT_BYTES
from gpusage_hooks.types import Interval, ModelGraph, Node, Optimizer, Workload
from graphs import chain, convolution_graph, node, perceptron_graph

A100 = builtin_catalogue().find("a100")
ROW = (-1, 1000)
ROW_BYTES = 4000.0


def tensors(graph: ModelGraph, batch_size: int = 1) -> Walk:
    return walk(graph, WorkloadAnalysis(graph, Workload(batch_size=batch_size)).lowering, batch_size)


def line(*op_types: str) -> ModelGraph:
    return chain("line", [node(op_type, [ROW], ROW) for op_type in op_types], ROW)


def term(name: str, graph: ModelGraph, batch_size: int = 1) -> float:
    lowering = WorkloadAnalysis(graph, Workload(batch_size=batch_size)).lowering
    return float(terms(lowering, walk(graph, lowering, batch_size))[TRAINING_TERMS.index(name)])


def needed(graph: ModelGraph, batch_size: int = 8, optimizer: Optimizer = "momentum") -> Interval:
    return analyze(graph, Workload(batch_size=batch_size, optimizer=optimizer)).memory_bytes([A100])[0]


@pytest.mark.parametrize(
    ("op_types", "saved"),
    [
        # a rectifier keeps what it wrote; a sum keeps nothing
        (("Relu", "Neg"), ROW_BYTES),
        # a sigmoid linear unit keeps what it read
        (("Neg", "Swish"), ROW_BYTES),
        # in place a leaky rectifier keeps what it wrote, and not what it read
        (("Neg", "LeakyReluInPlace", "Gelu"), ROW_BYTES),
        (("Neg", "LeakyRelu", "Gelu"), 2 * ROW_BYTES),
        # what a rectifier wrote and the next operation reads again is one tensor
        (("Relu", "Gelu"), ROW_BYTES),
        # a dropout keeps one byte an element
        (("Neg", "Dropout"), 1000.0),
        (("Neg", "Neg"), 0.0),
    ],
)
def test_each_operator_keeps_what_autograd_saves(op_types: tuple[str, ...], saved: float) -> None:
    assert term("saved", line(*op_types)) == saved


def test_a_view_takes_nothing_and_what_reads_it_keeps_its_storage() -> None:
    through_view = line("Neg", "Reshape", "Gelu")
    actual = tensors(through_view)
    assert actual.stored.tolist() == [ROW_BYTES, 0.0, ROW_BYTES]
    assert actual.saved.tolist() == [ROW_BYTES, 0.0, 0.0]


def test_a_tensor_lives_until_its_last_reader() -> None:
    nodes = (*line("Neg", "Neg", "Neg").nodes, node("Add", [ROW, ROW], ROW))
    skip = replace(line("Neg"), nodes=nodes, producers=((-1,), (0,), (1,), (0, 2)))
    # written one by one; the first stays for the sum at the end
    assert (tensors(skip).live / ROW_BYTES).tolist() == [1, 2, 3, 3]


def test_the_peak_of_training_holds_inputs_kept_tensors_and_gradients() -> None:
    shape = (1000, 1000)
    graph = chain("product", [node("Gemm", [ROW], ROW, shape)], ROW)
    # the input, the output and the gradient of the weight
    assert tensors(graph, 8).training_peak() == 2 * 8 * ROW_BYTES + 4e6


def test_a_weight_that_two_nodes_read_has_one_gradient() -> None:
    twice = chain("shared", [node("Gemm", [ROW], ROW, (1000, 1000))] * 2, ROW)
    shared = replace(twice, parameter_count=1_000_000)
    assert tensors(shared).gradients[0] == pytest.approx(4e6)


def test_a_model_without_nodes_has_the_memory_of_its_inputs() -> None:
    empty = ModelGraph(name="e", source="t", nodes=(), producers=(), inputs=(("x", ROW),), parameter_count=0)
    assert tensors(empty, 3).training_peak() == 3 * ROW_BYTES
    assert np.isfinite(terms(WorkloadAnalysis(empty, Workload()).lowering, tensors(empty))).all()


def test_every_term_grows_or_stays_where_the_batch_grows() -> None:
    for graph in (convolution_graph(), perceptron_graph()):
        values = np.array([[term(name, graph, size) for name in TRAINING_TERMS] for size in (1, 2, 7, 64)])
        assert (np.diff(values, axis=0) >= 0).all()


def test_convolutions_are_told_apart_by_kernel_and_groups() -> None:
    shape = (-1, 8, 10, 10)

    def one(*weight: int, group: int = 1) -> ModelGraph:
        return chain("conv", [node("Conv", [shape], shape, weight, group=group)], shape)

    passed = 2 * 800 * 4.0
    assert term("spatial", one(8, 8, 3, 3)) == term("pointwise", one(8, 8, 1, 1)) == passed
    assert term("grouped", one(8, 1, 3, 3, group=8)) == passed
    assert term("spatial", one(8, 8, 1, 1)) == term("pointwise", one(8, 8, 3, 3)) == 0


def test_a_learned_scale_needs_what_it_scales_and_a_known_one_does_not() -> None:
    learned, known = (chain("scale", [node("Neg", [ROW], ROW), node("Mul", [ROW], ROW, *w)], ROW) for w in ([(1,)], []))
    assert term("saved", learned) == ROW_BYTES
    assert term("saved", known) == 0


def test_a_product_keeps_its_own_copy_of_a_transposed_view() -> None:
    before, after = (-1, 10, 100), (-1, 100, 10)
    product = node("MatMul", [after], after, (10, 10))
    turned = chain("turned", [node("Relu", [before], before), node("Transpose", [before], after), product], before)
    straight = chain("straight", [node("Relu", [after], after), product], after)
    # what the rectifier wrote and the copy; without the view it is one tensor
    assert term("saved", turned) == 2 * ROW_BYTES
    assert term("saved", straight) == ROW_BYTES


def test_the_loss_takes_three_times_the_outputs() -> None:
    graph = chain("wide", [Node(op_type="Neg", inputs=((-1, 1_000_000),), outputs=((-1, 1_000_000),))], (-1, 1_000_000))
    # the input, the output, its gradient, and the loss
    assert needed(graph, 100).value - FITTED_CONTEXT_BYTES >= 5 * 100 * 4e6


def test_the_update_of_a_large_model_outweighs_its_tensors() -> None:
    weights = 4 * 50_000_000
    graph = chain(
        "wide", [Node(op_type="Gemm", inputs=((-1, 1),), outputs=((-1, 1),), parameters=((50_000_000,),))], (-1, 1)
    )
    # weights, gradients, two moments and the root of one: five times the weights
    adam = needed(graph, 1, "adam").value - FITTED_CONTEXT_BYTES
    assert adam == pytest.approx(5 * weights, rel=1e-3)


def test_without_an_optimizer_weights_and_gradients_are_still_there() -> None:
    graph = chain("product", [node("Gemm", [ROW], ROW, (1000, 50_000))], ROW)
    assert needed(graph, optimizer="none").value >= FITTED_CONTEXT_BYTES + 2 * 4 * graph.parameter_count


def test_resnet_50_needs_what_was_measured() -> None:
    """GPUMemNet measured 5,229 MiB at a batch of 32; the graph is that of examples/models."""
    from pathlib import Path  # only here

    from gpusage.decisions.advisor import make_advisor

    graph = make_advisor().read(str(Path(__file__).parents[3] / "examples" / "models" / "resnet50.onnx"))
    interval = needed(graph, 32)
    assert interval.value / 2**20 == pytest.approx(5229, rel=0.06)
    assert interval.low < 5229 * 2**20 < interval.high


def test_an_attention_of_five_sizes_is_not_fused() -> None:
    def scores(*before: int) -> float:
        query, key, made = (-1, *before, 64, 32), (-1, *before, 32, 64), (-1, *before, 64, 64)
        nodes = [
            node("MatMul", [query, key], made),
            node("Softmax", [made], made),
            node("MatMul", [made, query], query),
        ]
        graph = chain("attention", nodes, query)
        return term("stored", replace(graph, producers=((-1, -1), (0,), (1, -1))))

    # four sizes: only the output; five: scores and their softmax as well
    assert scores(8) == 8 * 64 * 32 * 4
    assert scores(2, 4) == 8 * 64 * 32 * 4 + 2 * 8 * 64 * 64 * 4


def test_what_a_convolution_turns_is_no_part_of_the_peak() -> None:
    """Half precision moves more bytes in a convolution, which turns them, and holds about half as many."""
    picture = (-1, 64, 112, 112)
    graph = chain(
        "deep", [node("Conv", [picture], picture, (64, 64, 3, 3)), node("Relu", [picture], picture)] * 6, picture
    )
    half, full = (
        analyze(graph, Workload(batch_size=48, precision=one)).memory_bytes([A100])[0].value - FITTED_CONTEXT_BYTES
        for one in ("fp16", "fp32")
    )
    assert half < 0.7 * full
