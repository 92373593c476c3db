"""What each of several GPUs holds, by hand for layers of language models, and by the figures of the ZeRO paper."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import exp
from typing import Any

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis, analyze
from gpusage.predictors.artifacts import pretrained
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.memory.peak import STATE_BYTES, tensor_peak
from gpusage.predictors.needs import predicted
from gpusage.predictors.parallel.data_parallel import Sharding, sharding_of
from gpusage.predictors.times.step_time import kind_of, step_times_s
from gpusage_hooks.types import ModelGraph, Strategy, Workload
from graphs import chain, node, stack

A100 = builtin_catalogue().find("a100")
LLAMA_7B = stack(4096, 11008, depth=4, length=128)
"""Parameters: 4 blocks of 2 x 4096 x 11008 = 90,177,536, together 360,710,144."""
GPT2_XL = stack(1600, 6400, depth=6, length=1024)
"""Parameters: 6 blocks of 2 x 1600 x 6400 = 20,480,000, together 122,880,000."""
SMALL = stack(64, 64, depth=4, length=16)
HALF = Workload(batch_size=2, optimizer="adam", precision="bf16")


def division(graph: ModelGraph, run: Workload) -> Sharding:
    return sharding_of(WorkloadAnalysis(graph, run).lowering, run)


def buffers(held: Sharding) -> tuple[float, float, float]:
    """Return all buffers: the least, what is usual, and the most."""
    most = held.bucket_bytes + held.max_gathered_bytes
    return held.gathered_bytes, held.bucket_bytes + held.gathered_bytes, most


@pytest.mark.parametrize(
    ("strategy", "gpus", "half", "full"),
    [
        # Bytes per weight with Adam, buffers left out; fp32 has 4 of the weight, 4 of its gradient, 8 of the state.
        ("ddp", 64, 18.0, 16.0),  # autocast: 4 + 4 + 8, and 2 of the copy
        # The ZeRO paper's table 1 for 7.5e9 parameters on 64 GPUs: 31.4, 16.6 and 1.9 GB, 4.1875, 2.21875, 0.25 each
        ("zero1", 64, 4 + 12 / 64, 8 + 8 / 64),
        ("zero2", 64, 2 + 14 / 64, 4 + 12 / 64),
        ("zero3", 64, 16 / 64, 16 / 64),
        ("fsdp", 64, 16 / 64, 16 / 64),
        ("zero1", 4, 7.0, 10.0),
        ("zero2", 4, 5.5, 7.0),
        ("zero3", 4, 4.0, 4.0),
        ("fsdp", 4, 4.0, 4.0),
    ],
)
def test_a_weight_takes_what_the_strategy_leaves_of_it(strategy: Strategy, gpus: int, half: float, full: float) -> None:
    for precision, expected in (("bf16", half), ("fp32", full)):
        run = replace(HALF, gpus=gpus, strategy=strategy, precision=precision)
        held = division(GPT2_XL, run)
        copies = 2 * held.copies if precision == "bf16" else 0.0
        assert 4 * held.weights + copies + 4 * held.gradients + STATE_BYTES["adam"] * held.state == expected


@pytest.mark.parametrize(
    ("graph", "block", "count"), [(LLAMA_7B, 90_177_536, 360_710_144), (GPT2_XL, 20_480_000, 122_880_000)]
)
def test_buffers_are_those_of_the_gradients_and_of_the_layers_that_run(
    graph: ModelGraph, block: int, count: int
) -> None:
    ddp, zero2, zero3, fsdp = (
        division(graph, replace(HALF, gpus=4, strategy=one)) for one in ("ddp", "zero2", "zero3", "fsdp")
    )
    # DDP's buckets of 25 MB are together as large as all gradients; low: gradients are views of them
    assert buffers(ddp) == (0, 4 * count, 4 * count)
    # DeepSpeed's bucket of 5e8 gradients holds all of these, in 2 bytes
    assert zero2.bucket_bytes == 2 * count
    # the weights of the block that runs and of the next, and the gradients of one, in 4 bytes
    full = division(graph, replace(HALF, gpus=4, strategy="fsdp", precision="fp32"))
    assert buffers(full) == pytest.approx((12 * block,) * 3)
    # in 2 bytes, as the whole module is
    assert buffers(fsdp) == pytest.approx((6 * block,) * 3)
    # stage 3 may keep 1e9 weights gathered
    assert zero3.max_gathered_bytes == pytest.approx(max(6 * block, 2 * count))
    frozen = division(graph, replace(HALF, gpus=4, strategy="fsdp", trainable=0.02))
    assert frozen.gathered_bytes == pytest.approx(2 * block * 2.02)


def test_a_model_without_blocks_is_gathered_whole() -> None:
    graph = chain(
        "two", [node("MatMul", [(-1, 8)], (-1, 16), (8, 16)), node("MatMul", [(-1, 16)], (-1, 4), (16, 4))], (-1, 8)
    )
    held = division(graph, Workload(optimizer="adam", gpus=2, strategy="fsdp"))
    assert held.gathered_bytes == 4 * 2 * (8 * 16 + 16 * 4)


@pytest.mark.parametrize(("graph", "count"), [(LLAMA_7B, 360_710_144), (GPT2_XL, 122_880_000)])
def test_ddp_takes_its_buckets_more_and_each_stage_less(graph: ModelGraph, count: int) -> None:
    alone = analyze(graph, HALF).peak.taken
    ddp, zero1, zero2, zero3, fsdp = (
        analyze(graph, replace(HALF, gpus=64, strategy=one)).peak.taken
        for one in ("ddp", "zero1", "zero2", "zero3", "fsdp")
    )
    assert ddp.value - alone.value == pytest.approx(4 * count)
    assert alone.low <= ddp.low < ddp.value
    assert alone.value > zero1.value >= zero2.value > zero3.value >= fsdp.value
    assert zero2.high > fsdp.high
    for one in (ddp, zero1, zero2, zero3, fsdp):
        assert one.low <= one.value <= one.high
    # activations stay whole: what no strategy divides is there on every GPU
    thousand = analyze(graph, replace(HALF, gpus=1000, strategy="fsdp")).peak.taken
    larger = analyze(graph, replace(HALF, gpus=1000, strategy="fsdp", batch_size=4)).peak.taken
    assert larger.value > 1.5 * (thousand.value - 6 * 0.25 * count)


def test_no_strategy_that_divides_more_takes_more_whatever_was_learned() -> None:
    """What must be there at once and what the update takes decide where nothing was learned."""
    parameters = pretrained().memory
    nothing = replace(parameters, weights=[[0.0] * len(parameters.terms)] * len(parameters.weights))
    for graph, learned, gpus in product((LLAMA_7B, GPT2_XL), (parameters, nothing), (2, 8, 64)):
        values = [
            tensor_peak(learned, graph, WorkloadAnalysis(graph, run).division).taken.value
            for run in (replace(HALF, gpus=gpus, strategy=one) for one in ("zero1", "zero2", "zero3", "fsdp"))
        ]
        assert values == sorted(values, reverse=True)


def test_the_step_is_that_of_one_gpu_known_less_well_and_the_parts_add_up() -> None:
    run = replace(HALF, gpus=4, strategy="fsdp")
    for each in (run, replace(run, gpus=16)):
        there = analyze(GPT2_XL, each).on([A100])
        (alone,) = step_times_s(there.efficiency, GPT2_XL, each, [A100], there.timing)
        (waits_s,) = there.waiting_s
        step_time_s = predicted(GPT2_XL, each, [A100])[0].step_time_s
        assert waits_s > 0
        assert step_time_s.value == pytest.approx(alone.value + waits_s)
        width = pretrained().step_time.deviations.of_kinds[kind_of(each)]
        assert step_time_s.high == pytest.approx(step_time_s.value * exp(width))
        assert step_time_s.low == pytest.approx(step_time_s.value / exp(width))
    alone_need, one_of_four = (predicted(GPT2_XL, each, [A100])[0] for each in (HALF, run))
    assert (alone_need.familiar, one_of_four.familiar) == (True, False)
    assert "All figures are per GPU, samples per second included; 4 GPUs train by fsdp" in one_of_four.notes[0]
    parts = explanation_of(GPT2_XL, run, A100).memory
    assert sum(part.memory_bytes for part in parts) == pytest.approx(one_of_four.memory_bytes.value)
    by_name = {part.name: part.memory_bytes for part in parts}
    assert by_name["gathered layers"] == pytest.approx(6 * 20_480_000)
    assert by_name["optimizer"] == 8 * 122_880_000 / 4


SHARDED = {"precision": "fp16", "strategy": "fsdp"}
"""One GPU casts its weights in short kernels of their own; sharded ones are gathered in two bytes."""


@pytest.mark.parametrize("how", [{}, {"checkpointing": True}, {"trainable": 0.1}, {"precision": "bf16"}, SHARDED])
def test_two_gpus_are_never_known_better_than_one_of_the_same_job(how: dict[str, Any]) -> None:
    """A small model's kernels are short, and the last GPU was not measured: both count on two GPUs, too."""
    gpus, run = [builtin_catalogue().find(name) for name in ("a100", "rtx5090")], Workload(batch_size=1, **how)
    for graph in (GPT2_XL, SMALL):
        one, two = (analyze(graph, replace(run, gpus=count)).step_time_s(gpus) for count in (1, 2))
        for alone, shared in zip(one, two, strict=True):
            assert shared.high / shared.value >= alone.high / alone.value * (1 - 1e-9)
            assert shared.value / shared.low >= alone.value / alone.low * (1 - 1e-9)
