"""What a node's neighbours decide: copies, attentions without a fused kernel, interpolations pixel by pixel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.times.kernel_times import LOAD_LATENCY_S
from gpusage.predictors.work.lowering import Lowering
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import ModelGraph, Workload
from graphs import attention_graph, chain, node

HALF = Workload(batch_size=8, mode="infer", precision="fp16")


def of_node(graph: ModelGraph, index: int, workload: Workload = HALF) -> tuple[Lowering, int]:
    lowering = WorkloadAnalysis(graph, workload).lowering
    return lowering, int(lowering.structure.kind_of_node[index])


def attention(*before: int) -> ModelGraph:
    """One attention whose tensors have the sizes *before* their tokens and width."""
    values, scores = (*before, 64, 32), (*before, 64, 64)
    nodes = (
        node("MatMul", [values], values, (32, 32)),
        node("MatMul", [values, (*before, 32, 64)], scores),
        node("Softmax", [scores], scores),
        node("MatMul", [scores, values], values),
    )
    return replace(attention_graph(), nodes=nodes, producers=((-1,), (0, 0), (1,), (2, 0)))


WINDOWED = attention(-1, 4, 9)
"""Batch, heads, windows, tokens and width are five sizes."""
MERGED = attention(-36)
"""Heads are a part of the batch: three sizes, as the image encoder of SAM has them."""


def interpolation(mode: str, before: str = "Relu") -> ModelGraph:
    small, large = (-1, 16, 7, 7), (-1, 16, 14, 14)
    resize = replace(node("Resize", [small], large), attributes=(("mode", mode),))
    return chain("interpolation", [node(before, [small], small), resize], small)


def test_sequences_that_are_turned_before_a_product_are_copied() -> None:
    turned = [
        node("Transpose", [(-1, 196, 512)], (-1, 512, 196)),
        node("MatMul", [(-1, 512, 196)], (-1, 512, 384), (196, 384)),
    ]
    lowering, kind = of_node(chain("mixer", turned, (-1, 196, 512)), 0, replace(HALF, precision="fp32"))
    assert lowering.operator_class[kind] == OperatorClass.COPY
    assert lowering.written_bytes[kind] == 8 * 196 * 512 * 4
    lowering, kind = of_node(chain("view", turned[:1], (-1, 196, 512)), 0)
    assert lowering.operator_class[kind] == OperatorClass.VIEW


def scaled_query(op_type: str = "Mul") -> ModelGraph:
    """The attention of three inputs, behind a node of *op_type* that reads the query alone."""
    plain = attention_graph()
    query, scores = plain.nodes[0].inputs[0], plain.nodes[0].outputs[0]
    nodes = (node(op_type, [query], query), *plain.nodes)
    assert scores == nodes[2].inputs[0]
    return replace(plain, nodes=nodes, producers=((-1,), (0, -2), (1,), (2, -3)))


def test_an_attention_whose_code_scales_the_query_writes_its_scores() -> None:
    lowering, scores = of_node(scaled_query(), 1)
    assert lowering.operator_class[scores] == OperatorClass.BATCHED_PRODUCT
    assert lowering.written_bytes[scores] == 8 * 4 * 128 * 128 * 2
    # a query that something else is done to, and that the fused kernel scales
    lowering, scores = of_node(scaled_query("Identity"), 1)
    assert lowering.operator_class[scores] == OperatorClass.ATTENTION
    # a forged factor of thousands of numbers, which are not multiplied for each of thousands of attentions
    graph = scaled_query()
    forged = replace(graph.nodes[0], parameters=((1,),) * 4000)
    lowering, scores = of_node(replace(graph, nodes=(forged, *graph.nodes[1:])), 1)
    assert lowering.operator_class[scores] == OperatorClass.ATTENTION


def test_a_bias_that_is_put_together_is_added_as_its_product_is_written() -> None:
    nodes = (
        node("Concat", [], (768,), (256,), (256,), (256,)),
        node("MatMul", [(-1, 197, 256)], (-1, 197, 768), (256, 768)),
        node("Add", [(-1, 197, 768), (768,)], (-1, 197, 768)),
    )
    graph = replace(chain("parts", list(nodes), (-1, 197, 256)), producers=((), (-1,), (1, 0)))
    lowering, kind = of_node(graph, 2)
    assert lowering.operator_class[kind] == OperatorClass.VIEW
    assert not lowering.written_bytes[kind]


@pytest.mark.parametrize("graph", [WINDOWED, MERGED])
def test_an_attention_of_more_or_fewer_sizes_than_four_is_computed_in_fp32(graph: ModelGraph) -> None:
    lowering, scores = of_node(graph, 1)
    assert lowering.operator_class[scores] == OperatorClass.BATCHED_PRODUCT
    assert not lowering.matrix_units[scores]
    assert lowering.written_bytes[scores] == 8 * 4 * 9 * 64 * 64 * 4
    # the scores are wide already; the values are cast
    values = int(lowering.structure.kind_of_node[3])
    assert lowering.cast_elements[values] == 8 * 4 * 9 * 64 * 32
    assert lowering.read_bytes[values] == 4 * (8 * 4 * 9 * 64 * (64 + 32))


def test_an_attention_of_four_sizes_is_fused() -> None:
    lowering, scores = of_node(attention(-1, 36), 1)
    assert lowering.operator_class[scores] == OperatorClass.ATTENTION
    assert not lowering.written_bytes[scores]


def test_of_fp32_nothing_is_cast_in_an_attention_of_five_sizes() -> None:
    lowering, scores = of_node(WINDOWED, 1, replace(HALF, precision="fp32"))
    assert not lowering.cast_elements.any()
    assert lowering.read_bytes[scores] == 2 * 8 * 4 * 9 * 64 * 32 * 4


@pytest.mark.parametrize(
    ("mode", "before", "trips"),
    [("linear", "Relu", 8 * 16), ("cubic", "Relu", 8 * 16), ("nearest", "Relu", 0), ("linear", "Reshape", 0)],
)
def test_an_interpolation_waits_for_each_channel_of_each_sample(mode: str, before: str, trips: int) -> None:
    lowering, kind = of_node(interpolation(mode, before), 1)
    assert lowering.operator_class[kind] == OperatorClass.COPY
    assert lowering.dependent_loads[kind] == trips


def test_waiting_takes_as_long_on_every_gpu() -> None:
    gpus = [builtin_catalogue().find(name) for name in ("t4", "h100")]
    workload = replace(HALF, batch_size=4096)
    slow, fast = (
        WorkloadAnalysis(interpolation(mode), workload).timing(gpus).kernels_s for mode in ("linear", "nearest")
    )
    assert np.allclose(slow - fast, LOAD_LATENCY_S * 4096 * 16)


def test_the_backward_pass_of_an_interpolation_does_not_wait() -> None:
    kernels = WorkloadAnalysis(interpolation("linear"), replace(HALF, mode="train")).kernels
    assert not kernels.dependent_loads[kernels.backward > 0].any()
    assert kernels.dependent_loads.sum() == 8 * 16
