from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import ModelGraph, Workload
from gpusage_lab.learning.measured_graphs import as_computed_by
from graphs import attention_graph, node

HALF = Workload(batch_size=8, mode="infer", precision="fp16")
WINDOWS, SCORES = (-1, 4, 9, 64, 32), (-1, 4, 9, 64, 64)


def windowed_attention() -> ModelGraph:
    nodes = (
        node("MatMul", [WINDOWS, (-1, 4, 9, 32, 64)], SCORES),
        node("Softmax", [SCORES], SCORES),
        node("MatMul", [SCORES, WINDOWS], WINDOWS),
    )
    return replace(attention_graph(), nodes=nodes)


def classes(graph: ModelGraph) -> set[int]:
    return set(WorkloadAnalysis(graph, HALF).lowering.operator_class.tolist())


@pytest.mark.parametrize("release", ["", "240", "291"])
def test_a_fused_attention_of_torch_2_stays_fused(release: str) -> None:
    graph = attention_graph()
    assert as_computed_by(graph, release) is graph


def test_before_torch_2_the_scores_of_an_attention_are_scaled_in_memory() -> None:
    older = as_computed_by(attention_graph(), "112")
    scaled = attention_graph(scaled_scores=True)
    assert (older.nodes, older.producers) == (scaled.nodes, scaled.producers)
    assert as_computed_by(older, "112") is older


def test_before_torch_2_5_an_attention_of_five_sizes_keeps_half_precision() -> None:
    today, older = windowed_attention(), as_computed_by(windowed_attention(), "240")
    assert as_computed_by(today, "291") is today
    wide, half = (WorkloadAnalysis(graph, HALF).lowering for graph in (today, older))
    assert not wide.matrix_units.any()
    assert half.matrix_units.any()
    assert OperatorClass.ATTENTION not in classes(older)
    softmax = (wide.operator_class == OperatorClass.REDUCTION, half.operator_class == OperatorClass.REDUCTION)
    assert wide.written_bytes[softmax[0]] == 2 * half.written_bytes[softmax[1]]


def test_a_global_attention_of_hiera_had_a_fifth_size_which_no_fused_kernel_takes() -> None:
    today = replace(attention_graph(), name="hiera_tiny_224")
    assert OperatorClass.ATTENTION in classes(today)
    for release in ("240", "291"):
        assert OperatorClass.ATTENTION not in classes(as_computed_by(today, release))
    assert as_computed_by(today, "") is today
