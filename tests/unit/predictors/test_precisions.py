"""What precisions of weights and optimizers of 8 bits change, by hand for layers of language models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.memory.liveness import step_walk
from gpusage.predictors.needs import predicted
from gpusage.predictors.work.lowering import weight_memory_bytes
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Decoding, Optimizer, Precision, Workload
from gpusage_hooks.units import MIB
from graphs import language_model, stack

A100 = builtin_catalogue().find("a100")
LLAMA_7B = stack(4096, 11008, depth=4, length=128)
COUNT = 360_710_144
"""Weights of `LLAMA_7B`: 4 x 2 x 4096 x 11008."""


def part_bytes(name: str, optimizer: Optimizer, precision: Precision) -> float:
    """Return the bytes of a part of the memory of training."""
    explained = explanation_of(LLAMA_7B, Workload(batch_size=2, optimizer=optimizer, precision=precision), A100)
    return sum(part.memory_bytes for part in explained.memory if part.name == name)


@pytest.mark.parametrize(
    ("optimizer", "precision", "weight", "state"),
    [
        ("adam", "fp32", 4, 8),
        ("adamw", "bf16", 4, 8),
        ("adamw", "bf16-pure", 2, 4),
        ("momentum", "bf16-pure", 2, 2),
        ("adam", "fp16-pure", 2, 4),
        # two moments of a byte, of which 256 share 4 bytes
        ("adamw8bit", "fp32", 4, 2 + 2 * 4 / 256),
        ("adam8bit", "bf16", 4, 2 + 2 * 4 / 256),
        ("adamw8bit", "bf16-pure", 2, 2 + 2 * 4 / 256),
    ],
)
def test_weights_and_state_have_their_bytes(
    optimizer: Optimizer, precision: Precision, weight: float, state: float
) -> None:
    assert part_bytes("parameters", optimizer, precision) == weight * COUNT
    assert part_bytes("optimizer", optimizer, precision) == pytest.approx(state * COUNT)


def test_pure_half_has_half_of_all() -> None:
    wide, pure = (Workload(batch_size=2, optimizer="adam", precision=name) for name in ("fp32", "bf16-pure"))
    before, after = (analyze(LLAMA_7B, run).peak.taken for run in (wide, pure))
    assert before.value * 0.45 < after.value < before.value * 0.55
    # the peak of fp32 is at the first product: 4 + 10.75 + 10.75 and 8 gradients of 172 MiB, input included; of the
    # pure run gradients and what passes have half, the input counts 4 bytes
    walk = step_walk(LLAMA_7B, WorkloadAnalysis(LLAMA_7B, pure).lowering, pure)
    assert walk.training_peak() / MIB == 4 + (10.75 + 10.75 + 8 * 172) / 2
    kernels = WorkloadAnalysis(LLAMA_7B, pure).kernels
    update = kernels.operator_class == OperatorClass.OPTIMIZER
    assert float((kernels.counts * kernels.traffic_bytes) @ update) == pytest.approx(14 * COUNT)
    assert OperatorClass.COPY not in kernels.operator_class


@pytest.mark.parametrize(("precision", "moved"), [("fp32", 8 + 4 + 4), ("fp16-pure", 4 + 2 + 4)])
def test_an_update_of_8_bits_moves_less(precision: Precision, moved: int) -> None:
    # weight read and written, gradient read, two moments of a byte read and written
    kernels = WorkloadAnalysis(LLAMA_7B, Workload(batch_size=2, optimizer="adamw8bit", precision=precision)).kernels
    update = kernels.operator_class == OperatorClass.OPTIMIZER
    assert float((kernels.counts * kernels.traffic_bytes) @ update) == pytest.approx(moved * COUNT)


def test_moments_of_8_bits_are_in_the_peak_whole() -> None:
    pure = [Workload(batch_size=2, optimizer=name, precision="bf16-pure") for name in ("sgd", "adamw8bit")]
    without, with_moments = (analyze(LLAMA_7B, run).peak.taken.high for run in pure)
    assert with_moments - without == pytest.approx((2 + 2 * 4 / 256) * COUNT, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "of_one"), [("int8", 1.0), ("int4", 0.5 + (2 + 0.5) / 128), ("fp8", 1.0), ("nf4", 0.5 + 4 / 64)]
)
def test_quantised_weights_of_products_have_fewer_bytes(precision: Precision, of_one: float) -> None:
    plain, quantised = (Workload(batch_size=2, mode="infer", precision=name) for name in ("bf16-pure", precision))
    lowering = WorkloadAnalysis(LLAMA_7B, quantised).lowering
    # the last product makes the outputs, and is equal to those at the ends of other blocks: all four stay at 2 bytes
    assert weight_memory_bytes(lowering, precision) == pytest.approx(COUNT / 2 * 2 + COUNT / 2 * of_one)
    before, after = (WorkloadAnalysis(LLAMA_7B, run).kernels for run in (plain, quantised))
    saved = float(before.counts @ before.traffic_bytes) - float(after.counts @ after.traffic_bytes)
    assert saved == pytest.approx(COUNT / 2 * (2 - of_one))
    assert np.allclose(before.flop, after.flop)
    need = predicted(LLAMA_7B, quantised, [A100])[0]
    assert not need.familiar
    assert f"Kernels for {precision} weights differ" in need.notes[-1]
    assert need.memory_bytes.value < predicted(LLAMA_7B, plain, [A100])[0].memory_bytes.value


def test_answers_are_quantised_as_well() -> None:
    whole = language_model(4096, 32, 32, 11008, 32000, length=128)
    decoding = Decoding(prompt_tokens=64, new_tokens=64)
    bytes_of = {
        name: analyze(whole, Workload(mode="infer", precision=name, generate=decoding)).peak.taken.value
        for name in ("bf16", "int4")
    }
    layer = 4 * 4096**2 + 2 * 4096 * 11008
    assert bytes_of["bf16"] - bytes_of["int4"] == pytest.approx(layer * (2 - 0.5 - 2.5 / 128))


def test_the_host_launches_autocasts_casts_too() -> None:
    """Eight weights and one input of 4 bytes; a compiler makes the input's cast a part of another kernel."""

    def host_counts(precision: Precision, **settings: Any) -> list[float]:
        workload = Workload(batch_size=2, precision=precision, **settings)
        return WorkloadAnalysis(LLAMA_7B, workload).kernels.host_counts.tolist()

    plain, cast = host_counts("bf16-pure"), host_counts("bf16")
    assert [more - before for more, before in zip(cast, plain, strict=True)] == [0, 1.5 * 9, 1.5 * 9, 0]
    plain, cast = host_counts("fp16-pure", mode="infer", compile=True), host_counts("fp16", mode="infer", compile=True)
    assert [more - before for more, before in zip(cast, plain, strict=True)] == [0, 8, 0, 0]
