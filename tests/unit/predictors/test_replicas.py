"""What GPUs wait for each other's gradients, by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpusage
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import analyze
from gpusage.predictors.needs import predicted
from gpusage.predictors.parallel.data_parallel import (
    GradientTraffic,
    gradient_traffic,
    waiting_s,
)
from gpusage_hooks.types import Precision, Strategy, Workload

FIND = builtin_catalogue().find
T4 = FIND("t4")
TWO = Workload(gpus=2)
BYTE_S = 4 / 13e9
"""Of two T4: 2 (n - 1) / n bytes from each GPU, up and down, on lanes that both share."""


def test_a_part_of_the_step_hides_what_is_early_but_not_what_comes_last() -> None:
    needs_s = 1e9 * BYTE_S
    assert waiting_s(GradientTraffic(1e9, 0.0), 0.0, TWO, T4) == pytest.approx(needs_s)
    assert waiting_s(GradientTraffic(1e9, 0.0), 0.3, TWO, T4) == pytest.approx(needs_s - 0.1)
    assert waiting_s(GradientTraffic(1e9, 0.0), 1.0, TWO, T4) == 0
    assert waiting_s(GradientTraffic(0.0, 1e9), 1.0, TWO, T4) == pytest.approx(needs_s)


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_of_steps_that_accumulate_one_sends_all_and_hides_no_more_than_itself(strategy: Strategy) -> None:
    """What the other steps take hid a part of the exchange, too, and with many of them all of it."""
    gradients, each = GradientTraffic(1e9, 1e8), replace(TWO, accumulate=8, strategy=strategy)
    assert waiting_s(gradients, 0.3, each, T4) == pytest.approx(waiting_s(gradients, 0.3, TWO, T4) / 8)


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "fsdp"])
def test_where_gpus_keep_parts_of_gradients_or_weights_each_step_sends_all(strategy: Strategy) -> None:
    gradients, run = GradientTraffic(1e9, 1e8), replace(TWO, strategy=strategy)
    assert waiting_s(gradients, 0.3, replace(run, accumulate=8), T4) == waiting_s(gradients, 0.3, run, T4) > 0


def test_a_model_sends_each_gradient_and_its_embeddings_come_last() -> None:
    graph = gpusage.read_model("hf:bert-base-uncased")
    lowering = analyze(graph, TWO).lowering
    early, late, _ = gradient_traffic(lowering, TWO)
    # 30,522 words, 512 positions and 2 kinds of 768 numbers
    assert late == 4 * 768 * (30522 + 512 + 2)
    assert early + late == 4 * graph.parameter_count
    half = gradient_traffic(lowering, replace(TWO, precision="bf16-pure", trainable=0.5))
    assert half.late_bytes == late / 4
    assert gradient_traffic(lowering, replace(TWO, strategy="fsdp")).late_bytes == 1.5 * late


@pytest.mark.parametrize(
    ("strategy", "precision", "trainable", "number_bytes"),
    [
        # an all-reduce hands sums out as well; to keep a part alone is half of it, and so is to gather in a pass
        ("ddp", "bf16", 1.0, 4),
        ("zero1", "bf16", 1.0, 2),
        ("zero3", "bf16", 1.0, 0.5 * 2 + 2 * 0.5 * 2),
        ("fsdp", "bf16", 1.0, 0.5 * 4 + 2 * 0.5 * 2),
        ("fsdp", "fp32", 1.0, 0.5 * 4 + 2 * 0.5 * 4),
        ("fsdp", "bf16-pure", 1.0, 0.5 * 2 + 2 * 0.5 * 2),
        # frozen weights are gathered, too
        ("fsdp", "bf16-pure", 0.1, 0.1 * 0.5 * 2 + 2 * 0.5 * 2),
    ],
)
def test_each_strategy_sends_what_its_numbers_take(
    strategy: Strategy, precision: Precision, trainable: float, number_bytes: float
) -> None:
    graph = gpusage.read_model("timm:resnet50")
    run = replace(TWO, strategy=strategy, precision=precision, trainable=trainable)
    assert sum(gradient_traffic(analyze(graph, TWO).lowering, run)) == pytest.approx(
        number_bytes * graph.parameter_count
    )


@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_a_sharded_model_runs_in_two_bytes_without_autocasts_copies(strategy: Strategy) -> None:
    """DeepSpeed's modules and FSDP's mixed precision are of two bytes as a whole; each GPU updates its part."""
    graph, run = gpusage.read_model("hf:bert-base-uncased"), Workload(batch_size=8, precision="bf16", optimizer="adam")
    a100 = FIND("a100")
    by_cast = predicted(graph, replace(run, gpus=2), [a100])[0]
    sharded = predicted(graph, replace(run, gpus=2, strategy=strategy), [a100])[0]
    pure = predicted(graph, replace(run, gpus=2, precision="bf16-pure"), [a100])[0]
    assert sharded.step_time_s.value < by_cast.step_time_s.value
    assert sharded.step_time_s.value == pytest.approx(pure.step_time_s.value, rel=0.15)


def test_a_faster_network_never_makes_a_step_longer_and_none_is_asked_on_one_host() -> None:
    graph, run = gpusage.read_model("hf:bert-base-uncased"), Workload(batch_size=8, gpus=16)
    slow, fast = (predicted(graph, replace(run, network_bytes_per_s=rate), [FIND("a100")])[0] for rate in (5e8, 5e10))
    assert fast.step_time_s.value < slow.step_time_s.value
    assert any("the network between hosts, 4 Gb/s per GPU" in note for note in slow.notes)
    one_host = [
        predicted(graph, replace(run, gpus=8, network_bytes_per_s=rate), [FIND("a100")])[0].step_time_s
        for rate in (5e8, None)
    ]
    assert one_host[0] == one_host[1]


def test_without_embeddings_half_a_bucket_comes_last_or_all_of_a_small_model() -> None:
    graph = gpusage.read_model("timm:resnet50")
    lowering = analyze(graph, TWO).lowering
    # DDP's buckets have 25 MiB at most
    assert gradient_traffic(lowering, TWO) == (4 * graph.parameter_count - 12.5 * 2**20, 12.5 * 2**20, 0)
    few = replace(TWO, trainable=0.01)
    assert gradient_traffic(lowering, few) == (0, pytest.approx(0.04 * graph.parameter_count), 0)


def test_a_step_on_several_gpus_has_what_they_wait_and_a_note_says_it() -> None:
    graph, run = gpusage.read_model("hf:bert-base-uncased"), Workload(batch_size=8)
    alone, two, four = (predicted(graph, replace(run, gpus=count), [T4])[0] for count in (1, 2, 4))
    assert alone.step_time_s.value < two.step_time_s.value < four.step_time_s.value
    waits_s = four.step_time_s.value - alone.step_time_s.value
    assert f"waits {waits_s * 1e3:.0f} ms for gradients on the host's bus" in four.notes[-2]
    linked = predicted(graph, replace(run, gpus=4), [FIND("a100")])[0]
    assert linked.step_time_s.value == pytest.approx(predicted(graph, run, [FIND("a100")])[0].step_time_s.value, 0.02)
    assert not any("gradients" in note for note in (*alone.notes, *linked.notes))


def test_the_notes_of_several_gpus_name_no_end_that_the_table_has_otherwise() -> None:
    """`up to 2.6 times as long` stood beside an interval that ended at 4.1 times the point."""
    graph = gpusage.read_model("hf:bert-base-uncased")
    need = predicted(graph, Workload(batch_size=8, gpus=4, strategy="zero3"), [T4])[0]
    assert not any(" times " in note for note in need.notes)
    assert any("The step's interval includes the wait of GPUs for each other." in note for note in need.notes)


def test_a_gpu_that_waits_is_busy_with_a_kernel_that_does_little() -> None:
    graph, run = gpusage.read_model("hf:bert-base-uncased"), Workload(batch_size=8)
    alone, eight = (predicted(graph, replace(run, gpus=count), [T4])[0] for count in (1, 8))
    assert alone.gpu_utilization.value < eight.gpu_utilization.value <= 1
    # the same work in a step that is longer; gaps between kernels are in both and make the shares differ by less
    longer = eight.step_time_s.value / alone.step_time_s.value
    for before, after in ((alone.sm_activity, eight.sm_activity), (alone.dram_activity, eight.dram_activity)):
        assert after.value == pytest.approx(before.value / longer, rel=0.1)
        assert after.low < after.value < after.high


@given(
    st.sampled_from(get_args(Strategy)),
    st.sampled_from(["fp32", "bf16", "bf16-pure"]),
    st.sampled_from(["t4", "rtx-4090", "a100"]),
)
@settings(max_examples=20, deadline=None)
def test_more_gpus_never_need_more_memory_each_and_never_wait_less(
    strategy: Strategy, precision: Precision, gpu: str
) -> None:
    graph, board = gpusage.read_model("hf:t5-small"), FIND(gpu)
    run = Workload(batch_size=4, strategy=strategy, precision=precision, optimizer="adam")
    runs = [replace(run, gpus=count) for count in (2, 3, 8, 9, 16, 64)]
    waits_s = [analyze(graph, one).on([board]).waiting_s[0] for one in runs]
    needs = [predicted(graph, one, [board])[0] for one in runs]
    for (fewer, before_s), (more, after_s) in pairwise(zip(needs, waits_s, strict=True)):
        assert more.memory_bytes.value <= fewer.memory_bytes.value
        assert more.memory_bytes.high <= fewer.memory_bytes.high
        assert after_s >= before_s
        # each GPU updates its part of the weights, unless it has them all
        if strategy == "ddp":
            assert more.step_time_s.value >= fewer.step_time_s.value
            assert more.step_time_s.high >= fewer.step_time_s.high
