"""What accumulating gradients and freezing weights change, by hand for layers of language models, in fp32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.memory.liveness import step_walk
from gpusage.predictors.needs import predicted
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import ModelGraph, Workload
from gpusage_hooks.units import MIB
from graphs import convolution_graph, stack

A100 = builtin_catalogue().find("a100")
PLAIN = Workload(batch_size=2, optimizer="adam")
LORA = Workload(batch_size=2, optimizer="adam", trainable=0.02)
ACCUMULATING = Workload(batch_size=2, optimizer="adam", accumulate=8)


LLAMA_7B = stack(4096, 11008, depth=4, length=128)
"""Parameters: 4 x 2 x 4096 x 11008 = 360,710,144."""
GPT2_XL = stack(1600, 6400, depth=6, length=1024)
"""Parameters: 6 x 2 x 1600 x 6400 = 122,880,000."""


def peak_bytes(graph: ModelGraph, workload: Workload) -> float:
    return step_walk(graph, WorkloadAnalysis(graph, workload).lowering, workload).training_peak()


def kernel_bytes(graph: ModelGraph, workload: Workload) -> dict[OperatorClass, float]:
    """Return the traffic of a step's kernels that are of no node, by class."""
    kernels = WorkloadAnalysis(graph, workload).kernels
    weights = np.where(kernels.kind < 0, kernels.counts * kernels.traffic_bytes, 0.0)
    sums = np.bincount(kernels.operator_class, weights, minlength=len(OperatorClass)).tolist()
    return dict(zip(OperatorClass, sums, strict=True))


@pytest.mark.parametrize(
    ("graph", "plain", "accumulating"),
    [
        # Llama-7B, 2 x 128 tokens: a row of 4096 has 4 MiB, one of 11008 has 10.75 MiB, a product's gradient 172 MiB.
        # Kept: the input 4, of blocks 2 to 4 theirs 3 x 4, both sides of each GELU 4 x 21.5; live at the last GELU:
        # both sides 21.5. With all gradients, 8 x 172: 4 + 12 + 86 + 21.5 + 1376. Without those of earlier steps the
        # peak is at the end of the backward pass: 4 + 10.75 (kept) + 10.75 (live) + 1376.
        (LLAMA_7B, 1401.5, 1499.5),
        # GPT-2 XL, 2 x 1024 tokens: 12.5 and 50 MiB, a product's gradient 39.0625 MiB. Kept 12.5 + 5 x 12.5 + 6 x 100,
        # live 100; all gradients are 12 x 39.0625. Without those of earlier steps there is that of the last product.
        (GPT2_XL, 775 + 39.0625, 775 + 468.75),
    ],
)
def test_gradients_of_all_weights_wait_beside_all_activations(
    graph: ModelGraph, plain: float, accumulating: float
) -> None:
    assert peak_bytes(graph, PLAIN) / MIB == plain
    assert peak_bytes(graph, ACCUMULATING) / MIB == accumulating
    before, after = (analyze(graph, run).peak.taken for run in (PLAIN, ACCUMULATING))
    added = (accumulating - plain) * MIB
    assert before.value <= after.value <= before.value + added * 1.0001
    assert before.high < after.high
    assert before.low <= after.low


@pytest.mark.parametrize(("graph", "parameter_count"), [(LLAMA_7B, 360_710_144), (GPT2_XL, 122_880_000)])
def test_a_step_has_a_part_of_the_update_and_adds_to_the_gradients(graph: ModelGraph, parameter_count: int) -> None:
    # Adam moves 28 bytes for each weight, an addition 12; seven of eight steps add
    plain, accumulating = kernel_bytes(graph, PLAIN), kernel_bytes(graph, ACCUMULATING)
    assert plain[OperatorClass.OPTIMIZER] == pytest.approx(28 * parameter_count)
    assert accumulating[OperatorClass.OPTIMIZER] == pytest.approx(28 * parameter_count / 8)
    sums = accumulating[OperatorClass.ELEMENTWISE] - plain[OperatorClass.ELEMENTWISE]
    assert sums == pytest.approx(12 * parameter_count * 7 / 8)
    before, after = (analyze(graph, run).step_time_s([A100])[0] for run in (PLAIN, ACCUMULATING))
    assert after.value < before.value


def test_one_step_for_an_update_is_as_before_and_the_parts_add_up() -> None:
    graph = convolution_graph()
    assert analyze(graph, Workload()) is analyze(graph, Workload(accumulate=1, steps=5))
    assert analyze(graph, Workload()) is not analyze(graph, Workload(accumulate=2))
    parts = explanation_of(graph, ACCUMULATING, A100).memory
    memory_bytes = analyze(graph, ACCUMULATING).memory_bytes([A100])[0].value
    assert sum(part.memory_bytes for part in parts) == pytest.approx(memory_bytes)
    assert {part.name: part.memory_bytes for part in parts}["gradients"] == 4 * graph.parameter_count


@pytest.mark.parametrize(
    ("graph", "parameter_count", "peak"),
    [
        # As above, with 2 % of the last product's gradient, 172 and 39.0625 MiB, beside the activations.
        (LLAMA_7B, 360_710_144, 123.5 + 0.02 * 172),
        (GPT2_XL, 122_880_000, 775 + 0.02 * 39.0625),
    ],
)
def test_frozen_weights_have_neither_gradients_nor_state(graph: ModelGraph, parameter_count: int, peak: float) -> None:
    assert peak_bytes(graph, LORA) / MIB == pytest.approx(peak)
    before, after = (analyze(graph, run).peak.taken for run in (PLAIN, LORA))
    # weights, 2 % of Adam's 8 bytes a weight, and the peak
    least = parameter_count * (4 + 0.02 * 8) + peak * MIB
    assert least <= after.value < before.value
    assert after.low < before.low
    assert after.high < before.high
    in_bf16 = analyze(graph, replace(LORA, precision="bf16")).peak.taken
    assert in_bf16.low >= parameter_count * (4 + 0.02 * 8)  # trained last layers: the frozen ones have 4 bytes, too
    kernels = [WorkloadAnalysis(graph, run).kernels for run in (PLAIN, LORA)]
    products = [one.backward * (one.operator_class == OperatorClass.PRODUCT) for one in kernels]
    backward = [float((one.counts * one.flop) @ of_it) for one, of_it in zip(kernels, products, strict=True)]
    tokens = 256 if graph is LLAMA_7B else 2048
    # a product is 2 FLOP for each weight and token; its backward pass is two of it, or one and 2 % of another
    assert backward == pytest.approx([4.0 * parameter_count * tokens, 2.04 * parameter_count * tokens])
    assert kernel_bytes(graph, LORA)[OperatorClass.OPTIMIZER] == pytest.approx(0.02 * 28 * parameter_count)


def test_a_step_with_frozen_weights_is_shorter_and_known_less_well() -> None:
    plain, frozen = (predicted(GPT2_XL, run, [A100])[0] for run in (PLAIN, LORA))
    assert frozen.step_time_s.value < 0.8 * plain.step_time_s.value
    # trained first layers: 2.02 forward passes; trained last layers: 1.04
    ends = [need.step_time_s.low / need.step_time_s.value for need in (plain, frozen)]
    assert ends[1] / ends[0] == pytest.approx(1.04 / 2.02, rel=0.02)
    assert plain.notes == ()
    assert "It is unknown which 2 % of the parameters are trained" in frozen.notes[0]
