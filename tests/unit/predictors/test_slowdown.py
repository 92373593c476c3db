"""What a share costs: the ratio of two step times, told from the graph or from an earlier run."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpusage
from gpusage.decisions.advisor import Advisor, advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.devices.shares import share_of
from gpusage.plugins.loading import make_hooks
from gpusage_hooks.errors import DeviceError
from gpusage_hooks.types import Decoding, GpuNeed, Interval, ModelGraph, Node, SoloRun, Workload
from gpusage_planning.zoo import load_zoo
from graphs import convolution_graph
from sites import announced

V100 = builtin_catalogue().find("v100")
GRAPH = convolution_graph()
PERCENTS = st.integers(1, 100)


def need(share: int, batch_size: int = 64, **known: float) -> GpuNeed:
    return gpusage.predict(GRAPH, gpu="v100", share=share, batch_size=batch_size, mode="infer", **known)


def test_half_a_gpu_has_half_the_sms_rates_and_bandwidth_and_the_whole_memory_and_cache() -> None:
    half = share_of(V100, 50)
    assert (half.name, half.sm_count) == (V100.name, 40)  # of 80
    assert half.peak_flop_per_s["fp32"] == V100.peak_flop_per_s["fp32"] / 2
    assert half.bandwidth_bytes_per_s == V100.bandwidth_bytes_per_s / 2
    assert (half.memory_bytes, half.l2_bytes, half.clock_hz) == (V100.memory_bytes, V100.l2_bytes, V100.clock_hz)


def test_a_share_has_at_least_one_sm_and_all_of_it_is_the_gpu_itself() -> None:
    assert share_of(V100, 1).sm_count == 1  # 0.8 of one
    assert share_of(V100, 100) is V100


@pytest.mark.parametrize("percent", [0, 101, -5])
def test_a_share_outside_1_to_100_percent_is_refused(percent: int) -> None:
    with pytest.raises(DeviceError, match=f"must be from 1 to 100 percent; got {percent}"):
        share_of(V100, percent)


def test_the_whole_gpu_costs_exactly_nothing() -> None:
    assert need(100) == gpusage.predict(GRAPH, gpu="v100", batch_size=64, mode="infer")
    assert (need(100).slowdown.low, need(100).slowdown.high) == (1.0, 1.0)


def test_a_job_whose_host_decides_pays_less_than_one_that_keeps_the_gpu_busy() -> None:
    idle, half_busy, busy = (need(25, utilization=known).slowdown.value for known in (0.1, 0.5, 1.0))
    assert idle < half_busy < busy
    assert idle == pytest.approx(1.0, abs=0.01)  # a GPU that works a tenth of the time needs no more than a quarter


def test_a_known_step_time_is_the_whole_gpus_and_the_share_takes_the_slowdown_more() -> None:
    half = need(50, step_time_s=0.2)
    assert need(100, step_time_s=0.2).step_time_s.value == 0.2
    assert half.step_time_s.value == pytest.approx(0.2 * half.slowdown.value)


def test_a_step_that_takes_a_hundred_times_its_gpu_time_costs_next_to_nothing_on_a_quarter() -> None:
    alone = need(100)
    slow_host = need(25, step_time_s=100 * alone.step_time_s.value)
    assert slow_host.slowdown.high < 1.2


def test_all_sizes_on_all_gpus_are_priced_at_once_as_each_is_by_itself() -> None:
    """At once in single precision: to six digits."""
    gpus, workload = [V100, builtin_catalogue().find("h100")], Workload(batch_size=8)
    prices = advisor().price(GRAPH, workload, gpus, (25, 50, 100))
    assert [[price.share_percent for price in of_gpu] for of_gpu in prices] == [[25, 50, 100]] * 2
    for gpu, of_gpu in zip(gpus, prices, strict=True):
        for price in of_gpu:
            ((by_itself,),) = advisor().price(GRAPH, workload, [gpu], [price.share_percent])
            assert (price.gpu, price.slowdown.high) == (gpu.name, pytest.approx(by_itself.slowdown.high, rel=1e-6))


def test_a_step_that_waits_for_its_host_has_cheap_shares_on_every_gpu() -> None:
    gpus, workload = [V100, builtin_catalogue().find("h100")], Workload(batch_size=8)
    known = replace(workload, alone=SoloRun(step_time_s=10.0, gpu=V100.name))
    for (price,) in advisor().price(GRAPH, known, gpus, [25]):
        assert price.slowdown.value == pytest.approx(1.0)


def test_a_whole_gpu_among_the_shares_is_asked_for_once() -> None:
    requests: list[int] = []

    hooks = make_hooks([announced(predict_needs=lambda gpus: requests.append(len(gpus)))])
    actual = Advisor(hooks=hooks, catalogue=builtin_catalogue()).predict_shares(GRAPH, Workload(), [V100], [100, 50])
    assert ([share.share_percent for share in actual], requests) == ([100, 50], [2])


def test_memory_must_fit_into_the_share_s_part() -> None:
    small, large = need(100), need(10)
    assert small.fits
    assert large.fits == (large.share_memory_bytes <= 0.1 * V100.memory_bytes)


@settings(max_examples=40, deadline=None)
@given(st.lists(PERCENTS, min_size=2, max_size=2, unique=True), st.sampled_from([1, 8, 64]))
def test_more_sms_never_cost_more(percents: list[int], batch_size: int) -> None:
    fewer, more = (need(percent, batch_size).slowdown for percent in sorted(percents))
    assert more.value <= fewer.value * 1.001
    assert more.high <= fewer.high * 1.001


@settings(max_examples=40, deadline=None)
@given(PERCENTS, st.floats(0.01, 1.0), st.floats(1e-5, 10.0))
def test_every_slowdown_is_an_ordered_interval_of_at_least_1(
    percent: int, utilization: float, step_time_s: float
) -> None:
    for known in ({"utilization": utilization}, {"step_time_s": step_time_s}, {}):
        slowdown = need(percent, 8, **known).slowdown
        assert 1.0 <= slowdown.low <= slowdown.value <= slowdown.high


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 256), st.sampled_from(["train", "infer"]))
def test_what_a_run_needs_is_no_more_than_what_it_takes_and_a_share_must_have_the_most_of_it(
    batch_size: int, mode: str
) -> None:
    need = gpusage.predict(GRAPH, gpu="v100", batch_size=batch_size, mode=mode)
    required, taken = need.required_bytes, need.memory_bytes
    assert 0 < required.low <= required.value <= required.high <= need.share_memory_bytes <= need.certain_memory_bytes
    assert required.value <= taken.value
    assert required.high <= taken.high


def test_a_predictor_that_tells_no_need_apart_is_taken_at_its_word() -> None:
    memory = Interval(value=1e9, low=0.9e9, high=1.2e9)
    plain = replace(need(50), memory_bytes=memory, required_memory_bytes=None, share_high_bytes=None)
    assert plain.share_memory_bytes == plain.certain_memory_bytes == 1.2e9


@pytest.mark.parametrize(
    ("gpu", "batch_size", "fits"),
    [("rtx-2080-ti", 64, True), ("v100", 128, True), ("v100", 256, False)],
)
def test_resnet50_fits_where_public_records_have_it(gpu: str, batch_size: int, *, fits: bool) -> None:
    """In fp32: 64 on 11 GB, 128 on 16 GB (NVIDIA DeepLearningExamples: 112 to 128 on a V100), 256 on no 16 GB."""
    assert gpusage.predict("examples/models/resnet50.onnx", gpu=gpu, batch_size=batch_size).fits is fits


def test_a_slice_has_its_slowdown_against_the_gpu_that_it_is_cut_from() -> None:
    whole, small, large = (
        gpusage.predict(GRAPH, gpu=name, batch_size=64) for name in ("a100", "a100:1g.5gb", "a100:3g.20gb")
    )
    assert whole.slowdown.high == 1.0
    assert 1.0 < large.slowdown.value < small.slowdown.value
    assert (large.share_percent, large.gpu) == (100, "a100-sxm4-40gb:3g.20gb")
    assert large.step_time_s.value / whole.step_time_s.value == pytest.approx(large.slowdown.value, rel=0.25)


def test_a_known_utilization_tells_what_a_slice_costs() -> None:
    idle = gpusage.predict(GRAPH, gpu="a100:3g.20gb", batch_size=64, utilization=0.1)
    assert idle.slowdown.value == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("board", ["a30", "a100", "a100-80gb", "h100", "h200", "b200"])
def test_a_slice_with_more_sms_and_memory_never_costs_more(board: str) -> None:
    """Slices of one memory are ordered by their SMs, and slices of as many SMs by their memory."""
    name = builtin_catalogue().find(board).name
    slices = [gpu for gpu in builtin_catalogue() if gpu.parent_gpu == name]
    for graph, batch_size in ((GRAPH, 1), (GRAPH, 64)):
        costs = {gpu.name: gpusage.predict(graph, gpu=gpu.name, batch_size=batch_size).slowdown for gpu in slices}
        for one, other in permutations(slices, 2):
            if one.sm_count <= other.sm_count and one.bandwidth_bytes_per_s <= other.bandwidth_bytes_per_s:
                assert costs[other.name].value <= costs[one.name].value * 1.001
                assert costs[other.name].high <= costs[one.name].high * 1.001


@pytest.mark.parametrize("known", [{}, {"utilization": (0.5, 4)}], ids=["nothing known", "known of another batch"])
def test_a_share_costs_nothing_where_no_node_computes_anything(known: dict[str, tuple[float, int]]) -> None:
    """It cost no number, and `gpusage predict` ended with a traceback."""
    node = Node(op_type="DequantizeLinear", inputs=((-1, 4),), outputs=((-1, 4),))
    views = ModelGraph(
        name="views", source="", nodes=(node,), producers=((-1,),), inputs=(("x", (-1, 4)),), parameter_count=0
    )
    half = gpusage.predict(views, gpu="v100", share=50, mode="infer", utilization=known.get("utilization"))
    assert half.slowdown.value == 1.0
    assert half.step_time_s.value > 0


VLLM_ON_HALF = {1: 1.54, 2: 1.76, 4: 1.88, 8: 1.86, 16: 1.85, 32: 2.02}
"""By batch: how many times as long Qwen3-4B took on half of an A100 of 40 GB, as published; 2,048 + 256 tokens."""


def test_vllm_on_half_a_gpu_costs_what_was_published_within_a_tenth() -> None:
    graph, decoding = load_zoo().graph("published:qwen3-4b@128"), Decoding(prompt_tokens=2048, new_tokens=256)
    a100, run = builtin_catalogue().find("a100-sxm4-40gb"), Workload(mode="infer", precision="bf16", engine="vllm")
    missed = []
    for batch, measured in VLLM_ON_HALF.items():
        served = replace(run, batch_size=batch, generate=decoding)
        price = advisor().price(graph, served, [a100], (50,))[0][0].slowdown
        assert price.low <= measured <= price.high
        missed.append(abs(price.value / measured - 1.0))
    assert sum(missed) / len(missed) == pytest.approx(0.078, abs=0.001)  # what lab/docs/accuracy.md says
