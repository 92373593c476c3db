"""Training with products in fp8, by hand for one layer of a language model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.needs import predicted
from gpusage.predictors.times.kernels import NARROW_UNITS
from gpusage.predictors.times.low_precision import casts_of, narrow_products
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, Workload
from graphs import language_model, with_layers

HIDDEN, INNER, WORDS, LENGTH = 1024, 4096, 1000, 512
MODEL = language_model(HIDDEN, 8, 8, INNER, WORDS, LENGTH)
HALF = Workload(batch_size=8, precision="bf16", optimizer="adamw")
FP8 = replace(HALF, precision="fp8-mixed")
H100, A100 = (builtin_catalogue().find(name) for name in ("h100", "a100"))


def test_linear_layers_but_the_models_output_are_of_fp8() -> None:
    lowering = WorkloadAnalysis(MODEL, FP8).lowering
    chosen = {lowering.structure.kinds[kind].parameters for kind in narrow_products(lowering).nonzero()[0]}
    assert chosen == {((HIDDEN, HIDDEN),), ((HIDDEN, INNER),), ((INNER, HIDDEN),)}
    kernels = analyze(MODEL, FP8).kernels
    assert float(kernels.counts[kernels.matrix_units == NARROW_UNITS].sum()) == 2 * 6  # forward and backward


def test_what_products_read_is_cast_once() -> None:
    """Per token: 3 inputs of 1,024, one of them of queries, keys and values; one of 4,096; gradients of 6 outputs."""
    tokens, weights = 8 * LENGTH, 4 * HIDDEN**2 + 2 * HIDDEN * INNER
    lowering = WorkloadAnalysis(MODEL, FP8).lowering
    count, elements = casts_of(lowering, narrow_products(lowering), None)
    assert count == pytest.approx(4 + 6 + 6)
    gradients = 5 * HIDDEN + INNER
    expected = tokens * (3 * HIDDEN + INNER) + weights + tokens * gradients
    assert count * elements == pytest.approx(expected)


def test_blocks_that_are_computed_once_more_cast_once_more() -> None:
    deep = with_layers(MODEL, 4)
    analysis = WorkloadAnalysis(deep, replace(FP8, checkpointing=True))
    lowering, narrow = analysis.lowering, narrow_products(analysis.lowering)
    (once, _), (again, _) = (casts_of(lowering, narrow, checkpoints) for checkpoints in (None, analysis.checkpoints))
    assert analysis.checkpoints is not None
    blocks = len(np.unique(analysis.checkpoints.start[analysis.checkpoints.recomputed_nodes]))
    assert again - once == pytest.approx(10 * blocks)  # inputs and weights


@pytest.mark.parametrize(("gpu", "speedup"), [(H100, 2.0), (A100, 1.0)])
def test_units_of_fp8_take_half_as_long(gpu: Gpu, speedup: float) -> None:
    times = []
    for run in (HALF, FP8):
        analysis = analyze(MODEL, run)
        chosen = (analysis.kernels.operator_class == OperatorClass.PRODUCT) & (analysis.kernels.inner == INNER)
        times.append(analysis.on([gpu]).kernel_times.compute_s[chosen][:, 0])
    assert times[0] == pytest.approx(speedup * times[1], rel=1e-5)
    notes = predicted(MODEL, FP8, [gpu])[0].notes
    assert any("without units for fp8" in note for note in notes) == (speedup == 1)


def test_memory_is_that_of_bf16() -> None:
    """Transformer Engine and torchao keep weights, and what autograd saves, as they are without it."""
    half, fp8 = (predicted(MODEL, run, [H100])[0] for run in (HALF, FP8))
    assert fp8.required_memory_bytes == half.required_memory_bytes
    assert not fp8.familiar


def test_a_gpu_without_bf16_is_said_to_compute_in_fp32() -> None:
    notes = predicted(MODEL, FP8, [builtin_catalogue().find("v100")])[0].notes
    assert "v100-sxm2-16gb has no units for bf16; the prediction uses its fp32 rate." in notes
    assert not any("fp8, at its rate" in note for note in notes)
