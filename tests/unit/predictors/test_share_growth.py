"""How many times as long kernels take on a part of a GPU: with few blocks, with many, and with little memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.decisions.advisor import advisor
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.devices.shares import alone_on, share_of, shares_alone_of, shares_of
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.sharing.slowdown import growths, growths_with, kernel_growths
from gpusage_hooks.types import Gpu, ModelGraph, Workload
from graphs import chain, convolution_graph, node

V100, H200 = builtin_catalogue().find("v100"), builtin_catalogue().find("h200")
A100_SLICES = [builtin_catalogue().find(f"a100:{profile}") for profile in ("1g.5gb", "1g.10gb")]
INFER = Workload(batch_size=64, mode="infer")
ELEMENTS = 16 * 2**20


def product(rows: int, columns: int) -> ModelGraph:
    """Return one product of matrices with 4,096 columns in between."""
    return chain("product", [node("MatMul", [(rows, 4096)], (rows, columns), (4096, columns))], (rows, 4096))


def activation() -> ModelGraph:
    """Return one kernel that reads 64 MiB and writes as much for each sample: memory alone decides."""
    return chain("relu", [node("Relu", [(-1, ELEMENTS)], (-1, ELEMENTS))], (-1, ELEMENTS))


def growth(graph: ModelGraph, gpu: Gpu, part: Gpu, workload: Workload = INFER, blocks: float | None = 2.0) -> float:
    return float(growths_with(blocks, WorkloadAnalysis(graph, workload), [gpu], [[part]])[0])


def test_a_kernel_of_few_blocks_takes_no_longer_on_half_of_the_sms_and_one_of_many_twice_as_long() -> None:
    """A block of a product is 8,192 outputs: 1 block, and 4,096 for 80 SMs, of which 2 each fill a V100."""
    half = alone_on(share_of(V100, 50), V100)
    assert growth(product(8, 1024), V100, half) == pytest.approx(1.0, abs=0.01)
    assert growth(product(4096, 8192), V100, half) == pytest.approx(2.0, abs=0.02)


def test_with_more_blocks_to_fill_a_gpu_a_share_costs_less() -> None:
    half = alone_on(share_of(V100, 50), V100)
    costs = [growth(product(1024, 1024), V100, half, blocks=blocks) for blocks in (0.5, 1.0, 2.0, 4.0)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1]


def test_a_share_alone_has_the_memory_that_its_sms_draw_and_beside_partners_its_part() -> None:
    """Each SM streams 34 GB/s at most, so half of a V100's draw all of its 900 GB/s; an H200 has fewer SMs for more."""
    graph, half = activation(), share_of(V100, 50)
    assert growth(graph, V100, alone_on(half, V100)) == pytest.approx(1.0, abs=0.01)
    assert growth(graph, V100, half) == pytest.approx(2.0, abs=0.02)
    assert growth(graph, H200, alone_on(share_of(H200, 50), H200)) == pytest.approx(2.0, abs=0.02)


def test_a_slice_has_its_own_memory_whoever_is_beside_it() -> None:
    """An eighth of the memory and two eighths, with as many SMs."""
    board, graph = builtin_catalogue().find("a100"), activation()
    small, large = (growth(graph, board, part) for part in A100_SLICES)
    assert (small, large) == pytest.approx((8.0, 4.0), rel=0.02)


@pytest.mark.parametrize("changes", [{"engine": "tensorrt"}, {"compile": True}], ids=["an engine", "a compiled pass"])
def test_what_nobody_measured_on_a_share_is_in_proportion_alone_and_beside_partners(changes: dict[str, object]) -> None:
    graph, workload = convolution_graph(), replace(INFER, precision="fp16", **changes)  # type: ignore[arg-type]
    analysis, half = WorkloadAnalysis(graph, workload), share_of(V100, 50)
    before_s, after_s = analysis.kernels_s([V100, half])
    alone, contended = growths(analysis, [V100], [[alone_on(half, V100), half]])
    assert alone == pytest.approx(after_s / before_s, rel=1e-5)
    assert contended == pytest.approx(alone, rel=1e-6)
    assert alone > growth(graph, V100, alone_on(half, V100), replace(INFER, precision="fp16"))


def test_the_step_grows_as_its_kernels_do() -> None:
    for workload in (INFER, replace(INFER, engine="tensorrt"), Workload(batch_size=8)):
        analysis, parts = WorkloadAnalysis(convolution_graph(), workload), shares_alone_of(V100, (25, 50, 100))
        seconds_s = analysis.kernels.counts * analysis.on([V100]).kernel_times.total_s[:, 0]
        by_kernel = kernel_growths(analysis, V100, parts)
        assert seconds_s @ by_kernel / seconds_s.sum() == pytest.approx(growths(analysis, [V100], [parts]), rel=1e-5)


def test_a_price_beside_partners_who_use_the_memory_is_no_less_than_alone() -> None:
    prices = advisor().price(activation(), INFER, [V100], (25, 50, 100))[0]
    for price in prices:
        assert price.slowdown_under_contention.value >= price.slowdown.value
    quarter, half, whole = prices
    assert half.slowdown.value == pytest.approx(1.0, abs=0.01)
    assert half.slowdown_under_contention.value > 1.9
    assert quarter.slowdown.value < quarter.slowdown_under_contention.value
    assert whole.slowdown_under_contention.high == 1.0


def test_shares_alone_are_the_same_objects_each_time_and_differ_in_the_memory_only() -> None:
    alone = shares_alone_of(V100, (50, 100))
    assert alone[0] is shares_alone_of(V100, (50, 100))[0]
    assert alone[0] == replace(share_of(V100, 50), bandwidth_bytes_per_s=V100.bandwidth_bytes_per_s)
    assert alone[1] is shares_of(V100, (50, 100))[1] is V100
