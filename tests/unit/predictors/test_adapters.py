"""LoRA and QLoRA: adapters beside linear layers, and quantised weights below them, by hand for layers of Llama-7B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import analyze
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.needs import predicted
from gpusage.predictors.times.low_precision import DEQUANTIZATIONS
from gpusage.predictors.work.lowering import with_adapters
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import ModelGraph, Precision, Workload
from graphs import chain, convolution_graph, node

A100 = builtin_catalogue().find("a100-sxm4-80gb")
TOKENS, WIDE, WORDS = (-1, 128, 4096), (-1, 128, 11008), (-1, 128, 32000)
_BLOCK = [
    node("MatMul", [TOKENS], WIDE, (4096, 11008)),
    node("Gelu", [WIDE], WIDE),
    node("MatMul", [WIDE], TOKENS, (11008, 4096)),
]
LLAMA_7B = chain("llama", [*_BLOCK * 4, node("MatMul", [TOKENS], WORDS, (4096, 32000))], TOKENS)
LAYER, HEAD, LAYERS = 4096 * 11008, 4096 * 32000, 8
"""Weights of a layer and of the output's, and how many layers there are."""
ADAPTERS = LAYERS * 16 * (4096 + 11008)
"""Of rank 16: 1,933,312 weights."""
LORA = Workload(batch_size=2, optimizer="adam", precision="bf16-pure", lora=16)
QLORA = replace(LORA, precision="nf4")


def parts_of(workload: Workload) -> dict[str, float]:
    """Return the parts of the predicted memory that are of no class of operators."""
    explained = explanation_of(LLAMA_7B, workload, A100)
    return {part.name: part.memory_bytes for part in explained.memory if part.operator_class is None}


def test_each_linear_layer_but_the_outputs_has_two_thin_products_a_scale_and_a_sum() -> None:
    adapted = with_adapters(LLAMA_7B, 16)
    assert len(adapted.nodes) == len(LLAMA_7B.nodes) + 4 * LAYERS
    assert adapted.parameter_count == LLAMA_7B.parameter_count + ADAPTERS
    assert adapted.trainable == ADAPTERS / adapted.parameter_count
    # the first layer, its adapter, which reads the same input, and the activation, which reads the sum
    assert [one.op_type for one in adapted.nodes[:6]] == ["MatMul", "MatMul", "MatMul", "Mul", "Add", "Gelu"]
    assert adapted.producers[:6] == ((-1,), (-1,), (1,), (2,), (0, 3), (4,))
    assert [one.parameters for one in adapted.nodes[1:3]] == [((4096, 16),), ((16, 11008),)]
    assert adapted.nodes[-1].op_type == "MatMul"


def test_a_model_without_linear_layers_has_no_adapters() -> None:
    plain = replace(convolution_graph(), nodes=convolution_graph().nodes[:1], producers=((-1,),))
    with pytest.raises(GraphError, match="must have linear layers before its output for 'lora'; got none"):
        with_adapters(plain, 8)


def test_adapters_have_four_bytes_and_the_rest_two() -> None:
    parts = parts_of(LORA)
    # peft keeps adapters in fp32: 4 bytes, and 8 of Adam's moments
    assert parts["parameters"] == pytest.approx(2 * (LAYERS * LAYER + HEAD) + 4 * ADAPTERS)
    assert parts["optimizer"] == pytest.approx(8 * ADAPTERS)


@pytest.mark.parametrize(("precision", "layer"), [("nf4", 4.5 / 8), ("int4", 0.5 + 2.5 / 128), ("int8", 1.0)])
def test_quantised_layers_take_less_but_for_one_that_is_widened(precision: Precision, layer: float) -> None:
    # the output's layer keeps two bytes; it is the largest, so as much room is left for a widened one
    parts = parts_of(replace(LORA, precision=precision))
    narrow = LAYERS * LAYER * layer + 2 * HEAD
    assert parts["parameters"] == pytest.approx(narrow + 2 * HEAD + 4 * ADAPTERS)


def widened(graph: ModelGraph, workload: Workload) -> tuple[float, float]:
    """Return how many kernels widen weights in a step, and the bytes that they move."""
    kernels = analyze(graph, workload).kernels
    chosen = (kernels.kind < 0) & (kernels.operator_class == OperatorClass.COPY)
    return float(kernels.counts[chosen].sum()), float((kernels.counts * kernels.traffic_bytes)[chosen].sum())


def test_bitsandbytes_widens_each_layer_in_each_pass() -> None:
    # 4.5 bits are read and 16 written, forward and backward; with checkpoints once more
    passes, each = widened(LLAMA_7B, QLORA), LAYER * (4.5 / 8 + 2)
    assert passes == (2 * LAYERS, pytest.approx(2 * LAYERS * each))
    assert widened(LLAMA_7B, replace(QLORA, checkpointing=True)) == (3 * LAYERS, pytest.approx(3 * LAYERS * each))


def test_gptq_widens_in_five_kernels_and_keeps_it_for_the_backward_pass() -> None:
    assert DEQUANTIZATIONS["int4"].traffic_bytes_per_weight == 16.5
    assert widened(LLAMA_7B, replace(QLORA, precision="int4")) == (5 * LAYERS, pytest.approx(LAYERS * LAYER * 16.5))


def test_frozen_layers_have_one_gradient_and_adapters_two() -> None:
    analysis = analyze(LLAMA_7B, LORA)
    kernels, lowering = analysis.kernels, analysis.lowering
    ratios = {
        lowering.structure.kinds[kind].parameters[0]: flop / lowering.flop[kind]
        for kind, flop, is_backward in zip(kernels.kind, kernels.flop, kernels.backward, strict=True)
        if is_backward and kind >= 0 and lowering.structure.kinds[kind].parameters
    }
    assert ratios[4096, 16] == ratios[16, 11008] == 2
    assert ratios[4096, 11008] == pytest.approx(1, abs=0.01)


def test_quantised_weights_take_less_memory_and_more_time() -> None:
    lora, qlora = (predicted(LLAMA_7B, run, [A100])[0] for run in (LORA, QLORA))
    assert qlora.memory_bytes.value < lora.memory_bytes.value
    assert qlora.required_bytes.value < lora.required_bytes.value
    assert qlora.step_time_s.value > lora.step_time_s.value
    assert not qlora.familiar


def test_gpus_that_share_weights_gather_them_as_they_are_stored() -> None:
    several = [replace(run, gpus=4, strategy="fsdp", checkpointing=True) for run in (LORA, QLORA)]
    lora, qlora = (explanation_of(LLAMA_7B, run, A100) for run in several)
    gathered = [
        sum(part.memory_bytes for part in one.memory if part.name == "gathered layers") for one in (lora, qlora)
    ]
    assert 0 < gathered[1] < gathered[0]


@pytest.mark.parametrize(
    ("precision", "changes", "expected"),
    [
        ("bf16", {}, True),
        ("bf16", {"gpus": 2, "strategy": "ddp"}, True),
        ("bf16", {"gpus": 2, "strategy": "fsdp"}, False),
        ("bf16-pure", {}, False),
        ("nf4", {}, False),
    ],
)
def test_a_note_says_that_autocast_has_frozen_weights_of_four_bytes(
    precision: Precision, changes: dict[str, Any], expected: bool
) -> None:
    notes = predicted(LLAMA_7B, replace(LORA, precision=precision, **changes), [A100])[0].notes
    assert any(f"write precision={precision}-pure" in note for note in notes) == expected
