from __future__ import annotations

import pytest

from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.work.lowering import Lowering
from gpusage_hooks.types import ModelGraph, Workload
from gpusage_lab.learning.measured_graphs import with_fast_norm
from graphs import chain, node

TOKENS, BATCH = (-1, 100, 64), 8
NUMBERS = 8 * 100 * 64
"""Of the tokens of one batch."""


def normalized(op_type: str) -> ModelGraph:
    """Return a product, an embedding of places that mixed precision adds in fp32, a normalization and a product."""
    return chain(
        "normalized",
        [
            node("MatMul", [TOKENS], TOKENS, (64, 64)),
            node("Add", [TOKENS], TOKENS, (1, 100, 64)),
            node(op_type, [TOKENS], TOKENS, (64,), (64,)),
            node("MatMul", [TOKENS], TOKENS, (64, 64)),
        ],
        TOKENS,
    )


def lowered(graph: ModelGraph) -> Lowering:
    return WorkloadAnalysis(graph, Workload(batch_size=BATCH, mode="infer", precision="fp16")).lowering


def bytes_and_casts(graph: ModelGraph, number: int) -> tuple[float, float, float]:
    """Return the bytes that node *number* reads and writes, and the numbers that are cast for it."""
    lowering = lowered(graph)
    kind = lowering.structure.kind_of_node[number]
    return lowering.read_bytes[kind], lowering.written_bytes[kind], lowering.cast_elements[kind]


def test_fast_norm_normalizes_in_half_precision_what_mixed_precision_widens() -> None:
    usual = normalized("LayerNormalization")
    fast = with_fast_norm(usual, "convnext", 291)
    # the sum is fp32: PyTorch normalizes it as it is, and the next product casts; timm casts first, then nothing does
    assert bytes_and_casts(usual, 2) == (4 * NUMBERS, 4 * NUMBERS, 0)
    assert bytes_and_casts(fast, 2) == (2 * NUMBERS, 2 * NUMBERS, NUMBERS)
    assert bytes_and_casts(usual, 3)[2] == NUMBERS
    assert bytes_and_casts(fast, 3)[2] == 0


@pytest.mark.parametrize(
    ("module", "release", "op_type", "is_fast"),
    [
        ("vision_transformer", 291, "LayerNormalization", True),
        ("vision_transformer", 240, "LayerNormalization", False),
        ("swin_transformer", 291, "LayerNormalization", False),
        ("swin_transformer", 291, "GroupNormalization", True),
        ("resnet", 240, "BatchNormalization", False),
    ],
)
def test_only_timms_own_layers_are_fast(module: str, release: int, op_type: str, is_fast: bool) -> None:
    graph = normalized(op_type)
    assert (with_fast_norm(graph, module, release).nodes != graph.nodes) is is_fast


def test_in_full_precision_a_fast_normalization_costs_what_any_does() -> None:
    usual = normalized("GroupNormalization")
    workload = Workload(batch_size=BATCH, mode="infer")
    fast = WorkloadAnalysis(with_fast_norm(usual, "resnet", 291), workload).kernels
    assert fast.traffic_bytes.tolist() == WorkloadAnalysis(usual, workload).kernels.traffic_bytes.tolist()
