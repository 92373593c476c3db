from __future__ import annotations

from dataclasses import replace

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.devices.shares import memory_cap_bytes
from gpusage.predictors.analysis import analyze
from gpusage.predictors.memory.peak import FITTED_CONTEXT_BYTES
from gpusage.predictors.sharing.colocation import predict_colocation
from gpusage.predictors.times.kernel_times import ideal_times, kernel_times
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Gpu, GpuNeed, Interval, ModelGraph, Optimizer, Precision, Workload
from gpusage_hooks.units import GIB, MIB
from graphs import attention_graph, chain, convolution_graph, node, perceptron_graph, recurrent_graph, strange_graph

A100 = builtin_catalogue().find("a100")
V100 = builtin_catalogue().find("v100")
H100 = builtin_catalogue().find("h100")
T4 = builtin_catalogue().find("t4")


def step_s(graph: ModelGraph, workload: Workload, gpu: str = "a100") -> float:
    return analyze(graph, workload).step_time_s([builtin_catalogue().find(gpu)])[0].value


def tensor_peak(graph: ModelGraph, workload: Workload) -> float:
    return analyze(graph, workload).memory_bytes([A100])[0].value - FITTED_CONTEXT_BYTES


def need(sm: float, dram: float = 0.1, memory_bytes: float = GIB) -> GpuNeed:
    def exactly(value: float) -> Interval:
        return Interval(value=value, low=value, high=value)

    return GpuNeed(
        gpu=V100.name,
        step_time_s=exactly(0.1),
        memory_bytes=exactly(memory_bytes),
        gpu_utilization=exactly(sm),
        sm_activity=exactly(sm),
        dram_activity=exactly(dram),
        throughput_samples_per_s=exactly(10.0),
        fits=True,
    )


def test_a_large_product_takes_nearly_as_long_as_its_arithmetic_at_the_peak() -> None:
    # 2 x 8192^3 FLOP at 19.5 TFLOP/s are 56 ms; cuBLAS reaches 75 to 100 % of the peak in fp32,
    # and the fit may be 4 % beyond it
    graph = perceptron_graph(width=8192, depth=1)
    assert 0.96 * 56e-3 < step_s(graph, Workload(batch_size=8192, mode="infer")) < 56e-3 / 0.75


def test_a_large_rectifier_takes_nearly_as_long_as_its_traffic_at_the_peak() -> None:
    # 2 x 4 bytes x 10^9 elements at 1,555 GB/s are 5.1 ms; NeuSight's A100 reaches 75 to 90 % of it
    graph = chain("relu", [node("Relu", [(-1, 1_000_000)], (-1, 1_000_000))], (-1, 1_000_000))
    assert 5.1e-3 < step_s(graph, Workload(batch_size=1000, mode="infer")) < 5.1e-3 / 0.7


def test_a_small_model_takes_as_long_as_its_launches_whatever_the_gpu() -> None:
    graph = perceptron_graph(width=16, depth=100)
    workload = Workload(batch_size=1, mode="infer")
    assert step_s(graph, workload, "h100") == pytest.approx(step_s(graph, workload, "v100"), rel=0.01)


def test_training_takes_about_three_forward_passes() -> None:
    graph = convolution_graph(channels=256, depth=8)
    forward, step = (step_s(graph, Workload(batch_size=64, mode=mode)) for mode in ("infer", "train"))
    assert 2 < step / forward < 4


@pytest.mark.parametrize(("faster", "slower"), [("h100", "a100"), ("a100", "v100"), ("v100", "p100"), ("p100", "k80")])
def test_newer_data_centre_gpus_are_faster_on_a_large_model(faster: str, slower: str) -> None:
    workload = Workload(batch_size=64)
    assert step_s(convolution_graph(), workload, faster) < step_s(convolution_graph(), workload, slower)


def test_half_precision_helps_where_there_are_tensor_cores_only() -> None:
    full, half = Workload(batch_size=64), Workload(batch_size=64, precision="fp16")
    graph = convolution_graph(channels=256)
    assert step_s(graph, half, "v100") < 0.5 * step_s(graph, full, "v100")
    assert step_s(graph, half, "k80") > 0.7 * step_s(graph, full, "k80")


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_precision_that_a_gpu_does_not_speed_up_is_still_predicted(precision: Precision) -> None:
    workload = Workload(batch_size=64, precision=precision)
    assert step_s(convolution_graph(), workload, "p100") > 0


def test_weights_gradients_and_state_are_counted_by_optimizer() -> None:
    graph = perceptron_graph(width=4096, depth=8)
    weights = graph.parameter_count * 4

    def used(optimizer: Optimizer) -> float:
        return tensor_peak(graph, Workload(batch_size=1, optimizer=optimizer))

    assert used("momentum") - used("sgd") == pytest.approx(weights)
    assert used("adam") - used("sgd") == pytest.approx(2 * weights)
    assert used("adamw") == used("adam")
    assert used("sgd") < used("adafactor") < used("momentum")
    assert used("none") >= 2 * weights


def test_training_keeps_what_the_backward_pass_reads() -> None:
    # one more block keeps the convolution's output for the normalisation and the rectifier's for the next convolution
    sample = 64 * 56 * 56 * 4
    workload = Workload(batch_size=64, optimizer="sgd")
    grown = tensor_peak(convolution_graph(depth=21), workload) - tensor_peak(convolution_graph(depth=20), workload)
    assert grown == pytest.approx(2 * 64 * sample * 1.05, rel=0.02)


def test_inference_memory_does_not_grow_with_depth_but_with_weights() -> None:
    workload = Workload(batch_size=64, mode="infer")
    shallow, deep = convolution_graph(depth=4), convolution_graph(depth=40)
    grown = tensor_peak(deep, workload) - tensor_peak(shallow, workload)
    assert grown == pytest.approx((deep.parameter_count - shallow.parameter_count) * 4, rel=1e-6)


def test_inference_keeps_a_tensor_until_its_last_reader() -> None:
    shape = (-1, 1_000_000)
    nodes = [node("Relu", [shape], shape) for _ in range(3)] + [node("Add", [shape, shape], shape)]
    line = chain("line", [*nodes[:3], node("Relu", [shape], shape)], shape)
    skip = replace(line, nodes=tuple(nodes), producers=((-1,), (0,), (1,), (2, 0)))
    workload = Workload(batch_size=100, mode="infer")
    # two tensors at a time in a line; the first one as well where the last node adds it
    assert tensor_peak(skip, workload) - tensor_peak(line, workload) == pytest.approx(100 * 4e6 * 1.05)


@pytest.mark.parametrize("length", [512, 1024, 2048])
def test_attention_takes_two_to_three_times_as_long_backward_as_forward(length: int) -> None:
    """As flash attention does: its backward pass computes the scores once more, and five products for two."""
    workload = Workload(batch_size=8, mode="train", precision="bf16")
    analysis = analyze(attention_graph(length=length, heads=12), workload)
    kernels = analysis.kernels
    times = (
        kernel_times(analysis.efficiency, kernels, ideal_times(kernels, [A100], "bf16")).total_s[:, 0] * kernels.counts
    )
    fused = kernels.operator_class == OperatorClass.ATTENTION
    backward, forward = (times[fused & (kernels.backward == turn)].sum() for turn in (1, 0))
    assert 2.0 < backward / forward < 3.5


def test_attention_that_writes_its_scores_needs_more_memory() -> None:
    workload = Workload(batch_size=64)
    fused, plain = attention_graph(length=512), attention_graph(length=512, scaled_scores=True)
    assert tensor_peak(plain, workload) > 2 * tensor_peak(fused, workload)


def test_mixed_precision_saves_memory_of_activations() -> None:
    graph = convolution_graph(depth=20)
    full, half = (tensor_peak(graph, Workload(batch_size=64, precision=name)) for name in ("fp32", "fp16"))
    assert 0.4 < half / full < 0.75


def test_an_empty_model_still_needs_a_context() -> None:
    empty = ModelGraph(name="empty", source="test", nodes=(), producers=(), inputs=(), parameter_count=0)
    assert analyze(empty, Workload(mode="infer")).memory_bytes([A100])[0].value == FITTED_CONTEXT_BYTES
    assert analyze(empty, Workload()).step_time_s([A100])[0].value > 0
    assert analyze(empty, Workload()).activity([A100])[0].sm_activity.value < 0.1


def test_resnet_like_training_is_busier_than_a_perceptron() -> None:
    workload = Workload(batch_size=64)
    busy = analyze(convolution_graph(depth=16, channels=128), workload).activity([V100])[0]
    idle = analyze(perceptron_graph(), workload).activity([V100])[0]
    assert busy.gpu_utilization.value > 0.85
    assert busy.sm_activity.value > 0.8
    assert idle.gpu_utilization.value < 0.4
    assert idle.sm_activity.value < 0.2


def test_sm_activity_is_never_above_gpu_utilization() -> None:
    for graph in (convolution_graph(), perceptron_graph(), recurrent_graph()):
        for activity in analyze(graph, Workload(batch_size=4)).activity(list(builtin_catalogue())):
            assert activity.sm_activity.value <= activity.gpu_utilization.value


def test_an_unknown_operator_widens_every_interval() -> None:
    known = replace(strange_graph(), unknown_op_types=())
    workload = Workload(batch_size=1024)

    def widths(graph: ModelGraph) -> list[float]:
        activity = analyze(graph, workload).activity([T4])[0]
        figures = [
            analyze(graph, workload).step_time_s([T4])[0],
            analyze(graph, workload).memory_bytes([T4])[0],
        ]
        figures += [activity.gpu_utilization, activity.sm_activity, activity.dram_activity]
        return [figure.high / figure.low for figure in figures]

    assert all(wide > narrow for wide, narrow in zip(widths(strange_graph()), widths(known), strict=True))


def test_answers_come_in_the_order_of_the_gpus() -> None:
    analysis = (convolution_graph(), Workload(batch_size=64))
    forward = analyze(*analysis).step_time_s([V100, A100, H100])
    assert analyze(*analysis).step_time_s([H100, A100, V100]) == forward[::-1]
    assert analyze(*analysis).step_time_s([]) == []


def test_two_light_jobs_lose_little_beside_each_other() -> None:
    answer = predict_colocation([need(0.3), need(0.3)], V100)
    assert answer.recommended
    assert answer.throughput_sum.value > 1.8
    assert sum(answer.mps_thread_percent) <= 100


def test_two_heavy_jobs_gain_nothing_from_each_other() -> None:
    answer = predict_colocation([need(0.95, 0.8), need(0.95, 0.8)], V100)
    assert answer.throughput_sum.value < 1.05
    assert not answer.recommended
    assert answer.fits


def test_jobs_that_do_not_fit_are_never_recommended() -> None:
    answer = predict_colocation([need(0.2, memory_bytes=9 * GIB), need(0.2, memory_bytes=9 * GIB)], V100)
    assert not answer.fits
    assert not answer.recommended


def test_the_memory_is_divided_by_what_jobs_need_not_by_what_they_take() -> None:
    """A job that needs 3 GiB may take 20; beside one that needs 1 GiB it has three quarters."""
    exactly = Interval(value=3.0 * GIB, low=3.0 * GIB, high=3.0 * GIB)
    greedy = replace(need(0.2, memory_bytes=20.0 * GIB), required_memory_bytes=exactly)
    answer = predict_colocation([greedy, need(0.2)], V100)
    usable_mib = memory_cap_bytes(V100.memory_bytes, 100) // MIB
    assert answer.fits
    assert [cap // MIB for cap in answer.memory_cap_bytes] == [usable_mib * 3 // 4, usable_mib // 4]


def test_a_job_alone_runs_as_when_alone() -> None:
    answer = predict_colocation([need(0.9)], V100)
    assert answer.normalised_throughput == (Interval(value=1.0, low=1.0, high=1.0),)
    assert not answer.recommended


def test_thread_percentages_never_add_up_to_more_than_the_gpu() -> None:
    answer = predict_colocation([need(0.9), need(0.5), need(0.4)], V100)
    assert sum(answer.mps_thread_percent) <= 100
    assert min(answer.mps_thread_percent) >= 1


DEFORMED = chain("deformed", [node("DeformConv", [(-1, 64, 9, 9)], (-1, 64, 9, 9), (64, 64, 3, 3))], (-1, 64, 9, 9))


def test_a_plain_workload_is_familiar() -> None:
    assert analyze(convolution_graph(), Workload(batch_size=64)).warnings([A100]) == [()]


def test_a_precision_of_as_many_bits_and_a_generation_between_measured_ones_are_familiar() -> None:
    for precision in ("fp16", "bf16"):
        assert analyze(convolution_graph(), Workload(batch_size=64, precision=precision)).warnings([H100]) == [()]


def test_what_only_a_small_share_of_the_work_is_strange_in_is_familiar() -> None:
    wide = (-1, 64, 56, 56)
    convolutions = [node("Conv", [wide], wide, (64, 64, 3, 3))] * 20
    graph = chain("mostly", [*convolutions, node("DeformConv", [wide], wide, (64, 64, 3, 3))], wide)
    assert analyze(graph, Workload(batch_size=8)).warnings([A100]) == [()]


@pytest.mark.parametrize(
    ("graph", "workload", "gpu", "words"),
    [
        (strange_graph(), Workload(), A100, "Fourier (1)"),
        (convolution_graph(), Workload(batch_size=10**6), A100, "1000000 samples"),
        (replace(convolution_graph(), parameter_count=10**12), Workload(), A100, "1,000,000 million parameters"),
        (convolution_graph(), Workload(), replace(A100, generation="rubin", is_measured=False), "'rubin'"),
        (convolution_graph(), Workload(), replace(A100, launch_year=2014), "of 2014"),
        (convolution_graph(), Workload(precision="tf32"), A100, "tf32"),
        (convolution_graph(pixels=2**14), Workload(batch_size=1024), A100, "FLOP"),
        (DEFORMED, Workload(batch_size=8), A100, "DeformConv (100 %)"),
        (ModelGraph(name="n", source="", nodes=(), producers=(), inputs=(), parameter_count=0), Workload(), A100, "no"),
    ],
    ids=["operator", "batch", "parameters", "generation", "year", "precision", "FLOP", "never measured", "empty"],
)
def test_what_is_strange_is_said(graph: ModelGraph, workload: Workload, gpu: Gpu, words: str) -> None:
    (notes,) = analyze(graph, workload).warnings([gpu])
    assert any(words in note for note in notes)
