"""What activation checkpoints change, by hand for layers of language models, in fp32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpusage
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.memory.liveness import step_walk
from gpusage.predictors.needs import predicted
from gpusage.predictors.work.checkpoints import checkpoints_of
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import ModelGraph, Workload
from gpusage_hooks.units import MIB
from graphs import chain, convolution_graph, node, stack

MODELS = Path(__file__).parents[3] / "examples" / "models"
A100 = builtin_catalogue().find("a100")
PLAIN = Workload(batch_size=2, optimizer="adam")
CHECKPOINTS = Workload(batch_size=2, optimizer="adam", checkpointing=True)


def layers(depth: int) -> ModelGraph:
    """Return halves of GPT-2 XL's layers."""
    return stack(1600, 6400, depth, 1024)


def peak_bytes(graph: ModelGraph, workload: Workload) -> float:
    analysis = WorkloadAnalysis(graph, workload)
    return step_walk(graph, analysis.lowering, workload, analysis.checkpoints).training_peak()


def product_flop(graph: ModelGraph, workload: Workload, *, backward: bool) -> float:
    kernels = WorkloadAnalysis(graph, workload).kernels
    chosen = (kernels.operator_class == OperatorClass.PRODUCT) & (kernels.backward == backward)
    return float((kernels.counts * kernels.flop) @ chosen)


def test_one_block_is_there_beside_what_all_blocks_read() -> None:
    # 2 x 1024 tokens: a row of 1600 has 12.5 MiB, one of 6400 has 50, a product's gradient 39.0625.
    # Without: input 12.5, those of blocks 2 to 6 5 x 12.5, both sides of each GELU 6 x 100, live 100 and a gradient.
    assert peak_bytes(layers(6), PLAIN) / MIB == 775 + 39.0625
    # With: at the first block's GELU the input, both sides, as much live, and eleven gradients; at the last block's
    # there are six narrow rows and one gradient, which is less.
    assert peak_bytes(layers(6), CHECKPOINTS) / MIB == 12.5 + 100 + 100 + 11 * 39.0625
    frozen = Workload(batch_size=2, optimizer="adam", checkpointing=True, trainable=1e-9)
    assert peak_bytes(layers(6), frozen) / MIB == pytest.approx(6 * 12.5 + 100 + 100)


@given(st.integers(min_value=2, max_value=8), st.integers(min_value=1, max_value=64))
def test_checkpoints_never_need_more_memory_nor_less_time(depth: int, batch_size: int) -> None:
    runs = [Workload(batch_size=batch_size, checkpointing=checkpointing) for checkpointing in (False, True)]
    plain, less = (predicted(layers(depth), run, [A100])[0] for run in runs)
    assert less.memory_bytes.value <= plain.memory_bytes.value
    assert less.memory_bytes.high <= plain.memory_bytes.high
    assert less.step_time_s.value > plain.step_time_s.value
    assert less.familiar
    assert less.notes == ()


def test_blocks_run_forward_twice() -> None:
    # 2 FLOP for each of 6 x 2 x 1600 x 6400 weights and each of 2048 tokens
    flop = 2 * 6 * 2 * 1600 * 6400 * 2048
    assert product_flop(layers(6), PLAIN, backward=False) == flop
    assert product_flop(layers(6), CHECKPOINTS, backward=False) == 2 * flop
    assert product_flop(layers(6), CHECKPOINTS, backward=True) == 2 * flop
    host = [WorkloadAnalysis(layers(6), run).kernels.host_counts for run in (PLAIN, CHECKPOINTS)]
    assert host[1].tolist() == [1.0, 2 * host[0][1], *host[0][2:]]


@pytest.mark.parametrize(("name", "count"), [("gpt2", 12), ("bert_base", 12), ("vit_b_16", 12), ("distilbert_base", 6)])
def test_a_block_is_a_layer_of_a_transformer(name: str, count: int) -> None:
    checkpoints = checkpoints_of(WorkloadAnalysis(gpusage.read_model(MODELS / f"{name}.onnx"), CHECKPOINTS).lowering)
    assert checkpoints.has_blocks
    assert len(set(checkpoints.start[checkpoints.recomputed_nodes].tolist())) in (count, count - 1)


def test_the_parts_of_the_memory_add_up_and_none_is_less_than_nothing() -> None:
    graph = gpusage.read_model(MODELS / "gpt2.onnx")
    parts = explanation_of(graph, CHECKPOINTS, A100).memory
    assert sum(part.memory_bytes for part in parts) == pytest.approx(
        analyze(graph, CHECKPOINTS).memory_bytes([A100])[0].value
    )
    assert min(part.memory_bytes for part in parts) > 0


def test_a_model_without_blocks_is_not_familiar_and_needs_no_less_memory() -> None:
    graph = gpusage.read_model(MODELS / "resnet50.onnx")
    plain, strange = (predicted(graph, run, [A100])[0] for run in (PLAIN, CHECKPOINTS))
    assert strange.memory_bytes == plain.memory_bytes
    assert strange.step_time_s.value > plain.step_time_s.value
    assert not strange.familiar
    assert "no repeated blocks" in strange.notes[-1]


def test_empty_and_short_models_have_no_blocks() -> None:
    for graph in (chain("empty", [], (-1, 8)), chain("one", [node("Relu", [(-1, 8)], (-1, 8))], (-1, 8))):
        checkpoints = checkpoints_of(WorkloadAnalysis(graph, CHECKPOINTS).lowering)
        assert not checkpoints.has_blocks
        assert np.isfinite(peak_bytes(graph, CHECKPOINTS))
    assert checkpoints_of(WorkloadAnalysis(convolution_graph(), CHECKPOINTS).lowering).has_blocks
