from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import graphs
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.work.lowering import Lowering, forward_flop
from gpusage.predictors.work.operators import RULES, OperatorClass, element_count
from gpusage_hooks.types import ModelGraph, Node, Workload
from graphs import attention_graph, chain, convolution_graph, node, recurrent_graph


def of_node(graph: ModelGraph, index: int, workload: Workload | None = None) -> tuple[Lowering, int]:
    lowering = WorkloadAnalysis(graph, workload or Workload(batch_size=8)).lowering
    return lowering, int(lowering.structure.kind_of_node[index])


def flop_of(one: Node, batch_size: int = 8) -> float:
    lowering, kind = of_node(chain("one", [one], one.inputs[0]), 0, Workload(batch_size=batch_size))
    return float(lowering.flop[kind])


@pytest.mark.parametrize(("shape", "expected"), [((), 1), ((3, 4), 12), ((-1, 4), 32), ((-2, -1), 128), ((0, -1), 0)])
def test_elements_are_counted_with_the_batch(shape: tuple[int, ...], expected: int) -> None:
    assert element_count(shape, 8) == expected


def test_a_convolution_counts_a_multiply_add_as_two() -> None:
    # 8 samples x 64 channels x 10 x 10 outputs, each a sum of 3 x 3 x 3 products
    one = node("Conv", [(-1, 3, 10, 10)], (-1, 64, 10, 10), (64, 3, 3, 3), group=1)
    assert flop_of(one) == 2 * 8 * 64 * 100 * 27


def test_a_depthwise_convolution_counts_one_channel_a_group() -> None:
    one = node("Conv", [(-1, 64, 10, 10)], (-1, 64, 10, 10), (64, 1, 3, 3), group=64)
    lowering, kind = of_node(chain("one", [one], one.inputs[0]), 0)
    assert lowering.flop[kind] == 2 * 8 * 64 * 100 * 9
    assert lowering.operator_class[kind] == OperatorClass.GROUPED_CONVOLUTION
    assert not lowering.matrix_units[kind]


@pytest.mark.parametrize("bias", [(), ((64,),)])
def test_a_convolution_whose_weight_is_made_at_every_step_counts_that_weight(bias: tuple[tuple[int, ...], ...]) -> None:
    """As weight_norm, spectral_norm and standardised weights do: the weight is read beside the pixels."""
    one = node("Conv", [(-1, 3, 10, 10), (64, 3, 3, 3)], (-1, 64, 10, 10), *bias, group=1)
    assert flop_of(one) == 2 * 8 * 64 * 100 * 27


def test_a_depthwise_convolution_whose_weight_is_made_at_every_step_is_one() -> None:
    one = node("Conv", [(-1, 64, 10, 10), (64, 1, 3, 3)], (-1, 64, 10, 10), (64,), group=64)
    lowering, kind = of_node(chain("one", [one], one.inputs[0]), 0)
    assert lowering.operator_class[kind] == OperatorClass.GROUPED_CONVOLUTION


def test_a_transposed_convolution_counts_its_inputs() -> None:
    one = node("ConvTranspose", [(-1, 16, 10, 10)], (-1, 8, 20, 20), (16, 8, 2, 2))
    assert flop_of(one) == 2 * 8 * 16 * 100 * 8 * 4


@pytest.mark.parametrize("weight", [(512, 256), (256, 512)])
def test_a_product_counts_the_same_however_its_weight_lies(weight: tuple[int, int]) -> None:
    assert flop_of(node("Gemm", [(-1, 512)], (-1, 256), weight)) == 2 * 8 * 512 * 256


def test_a_product_of_activations_is_of_its_own_class() -> None:
    graph = attention_graph(scaled_scores=True)
    lowering, kind = of_node(graph, 0)
    assert lowering.operator_class[kind] == OperatorClass.BATCHED_PRODUCT
    assert lowering.flop[kind] == 2 * 8 * 4 * 128 * 128 * 64


def test_a_recurrence_counts_all_gates_at_every_time_step() -> None:
    lowering, kind = of_node(recurrent_graph(length=32, width=256), 1)
    assert lowering.flop[kind] == 2 * 32 * 8 * (2 * 4 * 256 * 256)
    assert lowering.sequential_steps[kind] == 32


def test_an_embedding_reads_what_it_writes_and_not_its_table() -> None:
    lowering, kind = of_node(recurrent_graph(length=32, width=256), 0)
    assert lowering.read_bytes[kind] == lowering.written_bytes[kind] == 32 * 8 * 256 * 4
    assert lowering.parameter_bytes[kind] == 0


def test_equal_nodes_are_lowered_once() -> None:
    # stem; convolution, normalisation, rectifier of each block; pool, flatten, classifier
    lowering = WorkloadAnalysis(convolution_graph(depth=50), Workload()).lowering
    assert len(lowering.flop) == 1 + 3 + 3
    assert lowering.structure.counts.sum() == 1 + 3 * 50 + 3


def test_bytes_follow_the_precision_and_flop_do_not() -> None:
    full = WorkloadAnalysis(convolution_graph(), Workload(precision="fp32")).lowering
    half = WorkloadAnalysis(convolution_graph(), Workload(precision="bf16")).lowering
    assert np.array_equal(full.written_bytes, 2 * half.written_bytes)
    assert np.array_equal(full.flop, half.flop)


def test_integers_keep_their_width_in_half_precision() -> None:
    one = replace(node("ArgMax", [(-1, 1000)], (-1, 100)), element_type="int64")
    lowering, kind = of_node(chain("one", [one], (-1, 1000)), 0, Workload(precision="fp16"))
    assert lowering.written_bytes[kind] == 100 * 8


def test_an_image_of_three_channels_uses_matrix_units_only_where_its_sums_are_long_enough() -> None:
    wide = node("Conv", [(-1, 3, 32, 32)], (-1, 8, 32, 32), (8, 3, 3, 3))
    narrow = node("Conv", [(-1, 3, 32, 32)], (-1, 8, 32, 32), (8, 3, 1, 1))
    lowering = WorkloadAnalysis(chain("two", [wide, narrow], (-1, 3, 32, 32)), Workload()).lowering
    assert lowering.matrix_units.tolist() == [True, False]


def test_a_view_moves_no_bytes_and_shares_storage() -> None:
    graph = chain("view", [node("Relu", [(-1, 4)], (-1, 4)), node("Reshape", [(-1, 4)], (-1, 2, 2))], (-1, 4))
    lowering, kind = of_node(graph, 1)
    assert lowering.written_bytes[kind] == lowering.output_bytes[kind] == 0
    assert lowering.structure.root_of_node.tolist() == [0, 0]


def test_a_reshape_of_a_transposed_view_copies() -> None:
    nodes = [
        node("Relu", [(-1, 4, 8)], (-1, 4, 8)),
        node("Transpose", [(-1, 4, 8)], (-1, 8, 4)),
        node("Reshape", [(-1, 8, 4)], (-1, 32)),
    ]
    lowering, kind = of_node(chain("copy", nodes, (-1, 4, 8)), 2)
    assert lowering.operator_class[kind] == OperatorClass.COPY
    assert lowering.written_bytes[kind] == 8 * 32 * 4
    assert lowering.structure.root_of_node.tolist() == [0, 0, 2]


def test_a_bias_is_added_as_the_product_is_written() -> None:
    nodes = [node("MatMul", [(-1, 64)], (-1, 32), (64, 32)), node("Add", [(-1, 32)], (-1, 32), (32,))]
    lowering, kind = of_node(chain("linear", nodes, (-1, 64)), 1)
    assert lowering.operator_class[kind] == OperatorClass.VIEW


def test_fused_attention_never_writes_its_scores() -> None:
    fused = WorkloadAnalysis(attention_graph(), Workload(batch_size=8)).lowering
    assert set(fused.operator_class.tolist()) == {OperatorClass.ATTENTION}
    assert fused.written_bytes[fused.structure.kind_of_node[:2]].tolist() == [0, 0]
    assert fused.written_bytes[fused.structure.kind_of_node[2]] == 8 * 4 * 128 * 64 * 4


def test_scores_that_the_model_scales_itself_are_written() -> None:
    lowering, kind = of_node(attention_graph(scaled_scores=True), 2)
    assert lowering.operator_class[kind] == OperatorClass.REDUCTION
    assert lowering.written_bytes[kind] == 8 * 4 * 128 * 128 * 4


def test_arithmetic_on_shapes_is_the_hosts() -> None:
    shape = replace(node("Mul", [(2,)], (2,)), element_type="int64")
    lowering, kind = of_node(chain("host", [shape], (-1, 4)), 0)
    assert lowering.operator_class[kind] == OperatorClass.VIEW


def test_an_unknown_operator_is_taken_for_one_that_reads_and_writes() -> None:
    lowering, kind = of_node(graphs.strange_graph(), 1)
    assert lowering.operator_class[kind] == OperatorClass.UNKNOWN
    assert lowering.read_bytes[kind] == lowering.written_bytes[kind] == 8 * 64 * 4


def test_a_graph_without_nodes_is_lowered() -> None:
    empty = ModelGraph(name="empty", source="test", nodes=(), producers=(), inputs=(), parameter_count=0)
    assert len(WorkloadAnalysis(empty, Workload()).lowering.flop) == 0
    assert forward_flop(empty) == 0


def test_forward_flop_is_of_one_sample_even_where_the_file_has_a_fixed_batch() -> None:
    free = chain("free", [node("Gemm", [(-1, 64)], (-1, 32), (32, 64))], (-1, 64))
    fixed = replace(
        free, nodes=(node("Gemm", [(4, 64)], (4, 32), (32, 64)),), inputs=(("input", (4, 64)),), fixed_batch_size=4
    )
    assert forward_flop(free) == forward_flop(fixed) == 2 * 64 * 32


def test_every_rule_can_lower_a_node_without_weights() -> None:
    for op_type in RULES:
        one = node(op_type, [(-1, 4, 4, 4)], (-1, 4, 4, 4))
        lowering = WorkloadAnalysis(chain(op_type, [one], (-1, 4, 4, 4)), Workload()).lowering
        assert np.isfinite(lowering.flop).all(), op_type


@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrence_multiplies_its_gates_weights_at_each_time_step(op_type: str, gates: int) -> None:
    # 32 time steps of 8 samples: each gate has 256 x 256 weights for what comes in, and as many for what was
    layer = node(op_type, [(32, -1, 256)], (32, 1, -1, 256), (1, gates * 256, 256), (1, gates * 256, 256))
    graph = chain(op_type, [layer], (32, -1, 256))
    lowering = WorkloadAnalysis(graph, Workload(batch_size=8, mode="infer")).lowering
    assert lowering.flop.tolist() == [32 * 8 * 2 * gates * 2 * 256 * 256]
    assert lowering.sequential_steps.tolist() == [32]
    assert lowering.parameter_bytes.tolist() == [4 * gates * 2 * 256 * 256]


@pytest.mark.parametrize(("layout", "sizes"), [(0, (32, 256, 64)), (1, (256, 32, 64))])
def test_a_recurrence_of_a_fixed_batch_has_the_steps_that_its_layout_says(layout: int, sizes: tuple[int, ...]) -> None:
    layer = node("LSTM", [sizes], (*sizes[:2], 64), (1, 256, 64), (1, 256, 64), layout=layout)
    graph = replace(chain("LSTM", [layer], sizes), fixed_batch_size=256)
    assert WorkloadAnalysis(graph, Workload(batch_size=256)).lowering.sequential_steps.tolist() == [32]
