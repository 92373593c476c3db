"""The names of what `--json` prints."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpusage.cli import documents
from gpusage.predictors.artifacts import pretrained
from gpusage.predictors.intervals import inverse, product
from gpusage_hooks.types import GpuNeed, Interval, ModelGraph, Node, Workload

SHARE = Interval(value=0.5, low=0.4, high=0.6)
GRAPH = ModelGraph(
    name="one-layer",
    source="one.onnx",
    nodes=(Node(op_type="Gemm", inputs=((-1, 8),), outputs=((-1, 4),), parameters=((8, 4),)),),
    producers=((-1,),),
    inputs=(("x", (-1, 8)), ("mask", (4, 4))),
    parameter_count=32,
)


def _need(gpu: str, value: float, low: float, high: float) -> GpuNeed:
    return GpuNeed(
        gpu=gpu,
        step_time_s=Interval(value=value, low=low, high=high),
        memory_bytes=Interval(value=2e9, low=1e9, high=3e9),
        gpu_utilization=SHARE,
        sm_activity=SHARE,
        dram_activity=SHARE,
        throughput_samples_per_s=Interval(value=64 / value, low=64 / high, high=64 / low),
        fits=True,
    )


def test_a_need_has_the_promised_names() -> None:
    document = documents.need(_need("v100", 0.2, 0.1, 0.4), first=_need("v100", 0.2, 0.1, 0.4))
    assert list(document) == [
        "gpu",
        "share_percent",
        "slowdown",
        "step_time_s",
        "memory_bytes",
        "required_memory_bytes",
        "share_memory_bytes",
        "gpu_utilization",
        "sm_activity",
        "dram_activity",
        "throughput_samples_per_s",
        "speedup",
        "fits",
        "familiar",
        "notes",
    ]
    assert document["step_time_s"] == {"value": 0.2, "low": 0.1, "high": 0.4}
    assert document["speedup"] == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_steps_turn_step_time_into_run_time() -> None:
    need = _need("v100", 0.25, 0.125, 0.5)
    assert documents.need(need, steps=1000)["run_time_s"] == {"value": 250.0, "low": 125.0, "high": 500.0}


def test_the_errors_of_a_speedups_two_sides_add_by_their_squares_less_what_both_share() -> None:
    """Both step times miss by a factor of 2 at most: their quotient by 2 ** sqrt(2), were nothing shared."""
    reach = math.sqrt(2 - 2 * pretrained().step_time.deviations.shared_own)
    assert 0 < reach < math.sqrt(2)
    speedup = documents.speedup(_need("rtx-4090", 1.0, 0.5, 2.0), _need("rtx-3090", 4.0, 2.0, 8.0))
    assert speedup.value == pytest.approx(4.0)
    assert speedup.high == pytest.approx(4.0 * 2**reach)
    assert speedup.low == pytest.approx(4.0 / 2**reach)


def test_the_speedup_of_a_share_is_against_the_first_gpu_whole() -> None:
    """Three quarters of the first GPU, asked for first, are slower than that GPU by what they cost."""
    whole, cost = _need("v100", 0.2, 0.1, 0.4), Interval(value=1.2, low=1.1, high=1.5)
    part = replace(whole, share_percent=75, slowdown=cost, step_time_s=product(whole.step_time_s, cost))
    speedup = documents.speedup(part, part)
    assert (speedup.value, speedup.low, speedup.high) == pytest.approx((1 / 1.2, 1 / 1.5, 1 / 1.1))


def test_the_speedup_of_another_gpus_share_is_the_whole_gpus_divided_by_its_price() -> None:
    first, other = _need("v100", 0.4, 0.2, 0.8), _need("h100", 0.2, 0.1, 0.4)
    cost = Interval(value=1.25, low=1.1, high=1.6)
    parts = [
        replace(need, share_percent=50, slowdown=cost, step_time_s=product(need.step_time_s, cost))
        for need in (first, other)
    ]
    expected = product(documents.speedup(other, first), inverse(cost))
    speedup = documents.speedup(parts[1], parts[0])
    assert (speedup.value, speedup.low, speedup.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_a_model_is_described_by_one_sample() -> None:
    """A matrix product of 8 x 4 does 32 multiply-adds, 2 FLOP each; 32 weights take 128 bytes as fp32."""
    document = documents.model(GRAPH)
    assert document == {
        "name": "one-layer",
        "source": "one.onnx",
        "node_count": 1,
        "parameter_count": 32,
        "active_parameter_count": 32,
        "parameter_bytes": 128,
        "flop": pytest.approx(64, rel=0.1),  # a bias or an activation may be counted, too
    }


def test_active_are_the_experts_that_a_token_goes_to() -> None:
    """Each of 16 tokens goes to 2 of 8 experts of 4 x 4: 32 rows, and 32 of 128 weights."""
    experts = Node(op_type="GroupedMatMul", inputs=((-32, 4), (8,)), outputs=((-32, 4),), parameters=((8, 4, 4),))
    nodes, inputs = (*GRAPH.nodes, experts), (("input_ids", (-1, 16)),)
    graph = replace(GRAPH, nodes=nodes, producers=((-1,), (0,)), inputs=inputs, parameter_count=32 + 128)
    document = documents.model(graph)
    assert (document["parameter_count"], document["active_parameter_count"]) == (160, 32 + 32)


def test_a_workloads_shape_is_that_of_one_sample_and_inference_has_no_optimizer() -> None:
    document = documents.workload(GRAPH, Workload(batch_size=4, mode="infer", optimizer="adam"))
    assert document == {
        "batch_size": 4,
        "mode": "infer",
        "precision": "fp32",
        "optimizer": "none",
        "shape": {"x": [8], "mask": [4, 4]},
    }
