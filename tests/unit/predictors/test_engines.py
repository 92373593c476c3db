"""Engines, by hand: what a layer of Llama-7B takes where a CUDA graph replays it."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

import gpusage
from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.artifacts import pretrained
from gpusage.predictors.explanation import explanation_of
from gpusage.predictors.extrapolation import ENGINE_WARNING
from gpusage.predictors.needs import predicted
from gpusage.predictors.times.kernel_times import MOST_SHARE, SM_BYTES_PER_S, sustained_share
from gpusage.predictors.times.low_precision import DEQUANTIZATION_LAUNCHES
from gpusage.predictors.times.step_time import ENGINES, MATRIX_SHARE, kind_of, replays_graph, times_on
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Decoding, Engine, Gpu, Precision, Workload
from graphs import language_model

A100, H20, H100, V100 = map(builtin_catalogue().find, ("a100-sxm4-80gb", "h20", "h100", "v100"))
MODELS = Path(__file__).parents[3] / "examples" / "models"
LLAMA = language_model(4096, 32, 32, 11008, 32000, length=128)
LAYER = 4 * 4096**2 + 2 * 4096 * 11008
OUTPUTS = 4096 * 32000


def served(engine: Engine, precision: Precision = "bf16-pure", batch_size: int = 1, prompt: int = 64) -> Workload:
    decoding = Decoding(prompt_tokens=prompt, new_tokens=65)
    return Workload(batch_size=batch_size, mode="infer", precision=precision, generate=decoding, engine=engine)


def token_s(workload: Workload, gpu: Gpu) -> float:
    return float(WorkloadAnalysis(LLAMA, workload).on([gpu]).tokens[1].step_s[0])


def test_a_token_takes_the_bytes_of_weights_and_cache_and_a_floor_for_each_kernel() -> None:
    workload = served("vllm")
    kernels = WorkloadAnalysis(LLAMA, workload).passes[1]
    # bf16; a context of 64 + 65 / 2 tokens, keys and values of 4096 numbers each
    least_bytes = 2 * (LAYER + OUTPUTS) + 2 * 2 * 4096 * 96.5
    moved = float(kernels.traffic_bytes @ kernels.counts)
    assert least_bytes < moved < 1.01 * least_bytes
    launches = float(kernels.launches @ kernels.counts)
    expected_s = moved / (MOST_SHARE * A100.bandwidth_bytes_per_s) + ENGINES["vllm"].floor_s * launches
    assert token_s(workload, A100) == pytest.approx(expected_s, rel=1e-4)


@pytest.mark.parametrize(
    ("workload", "kind"),
    [
        (Workload(), "train, channels_first"),
        (Workload(layout="channels_last", gpus=1), "train, channels_last"),
        (Workload(gpus=2), "train, several GPUs, whole"),
        (Workload(gpus=8, tensor=2), "train, several GPUs, divided"),
        (Workload(gpus=8, expert=8), "train, several GPUs, divided"),
        (Workload(mode="infer", layout="channels_last"), "infer, channels_last"),
        (Workload(mode="infer", precision="bf16", compile=True, layout="channels_last"), "infer, compiled"),
        (Workload(mode="infer", engine="tensorrt"), "pass, engine"),
        (served("eager"), "answer, eager"),
        (served("vllm"), "answer, engine"),
        (replace(served("compile"), gpus=2), "answer, engine, several GPUs"),
    ],
)
def test_a_kind_says_how_a_workload_is_run(workload: Workload, kind: str) -> None:
    assert kind_of(workload) == kind


@pytest.mark.parametrize("workload", [served("eager"), served("vllm"), Workload(gpus=8, batch_size=4)])
def test_a_kind_that_was_seen_has_its_own_width_on_every_gpu(workload: Workload) -> None:
    width = exp(pretrained().step_time.deviations.of_kinds[kind_of(workload)])
    for step in WorkloadAnalysis(LLAMA, workload).step_time_s([A100, H20, V100]):
        assert step.high / step.value == pytest.approx(width)
        assert step.value / step.low == pytest.approx(width)


@pytest.mark.parametrize(
    ("engine", "name", "gpus"),
    [
        ("tensorrt", "mi300x", "Nvidia's"),
        ("tensorrt-llm", "p100", "Nvidia's since Volta"),
        ("vllm", "p100", "Nvidia's since Volta, or AMD's since MI200"),
    ],
)
def test_a_note_says_that_an_engine_does_not_run_on_a_gpu(engine: Engine, name: str, gpus: str) -> None:
    gpu = builtin_catalogue().find(name)
    other, able = predicted(LLAMA, served(engine, "fp32"), [gpu, A100])
    note = f"Engine {engine} does not run on {gpu.name}; its GPUs are {gpus}."
    assert note in other.notes
    assert not any("does not run" in text for text in able.notes)


def test_a_gpu_with_few_sms_does_not_reach_its_memory_s_rate() -> None:
    # H20: 78 SMs stream 2.65 TB/s of its 4.0; A100's 108 more than its memory has
    assert SM_BYTES_PER_S * H20.sm_count < MOST_SHARE * H20.bandwidth_bytes_per_s
    assert SM_BYTES_PER_S * A100.sm_count > MOST_SHARE * A100.bandwidth_bytes_per_s
    kernels = WorkloadAnalysis(LLAMA, served("vllm")).passes[1]
    moved, launches = float(kernels.traffic_bytes @ kernels.counts), float(kernels.launches @ kernels.counts)
    expected_s = moved / (SM_BYTES_PER_S * 78) + ENGINES["vllm"].floor_s * launches
    assert token_s(served("vllm"), H20) == pytest.approx(expected_s, rel=1e-4)


def test_a_compiled_answer_is_what_its_engine_says() -> None:
    compiled = replace(served("eager"), compile=True)
    assert token_s(compiled, A100) == token_s(served("compile"), A100) < token_s(served("eager"), A100)
    assert replays_graph(compiled)
    assert not replays_graph(replace(compiled, generate=None))  # a compiled pass is launched kernel by kernel
    assert not replays_graph(served("eager"))


def test_tensorrt_builds_a_model_with_weights_of_two_bytes_and_casts_nothing() -> None:
    graph = gpusage.read_model(MODELS / "resnet50.onnx")
    built = Workload(batch_size=1, mode="infer", precision="fp16", engine="tensorrt")
    pure = WorkloadAnalysis(graph, replace(built, precision="fp16-pure"))
    analysis = WorkloadAnalysis(graph, built)
    assert replays_graph(built)
    assert analysis.kernels.traffic_bytes == pytest.approx(pure.kernels.traffic_bytes)
    eager = WorkloadAnalysis(graph, replace(built, engine="eager"))
    moved = [float(each.kernels.traffic_bytes @ each.kernels.counts) for each in (analysis, eager)]
    casts_bytes = 6 * 25.6e6  # of each weight 4 bytes are read, and 2 written
    assert moved[1] - moved[0] > casts_bytes
    times = [predicted(graph, each.workload, [A100])[0].step_time_s.value for each in (analysis, pure)]
    assert times[0] == pytest.approx(times[1])


def test_tensorrt_orders_tensors_as_it_reads_them_and_has_one_byte_between_layers_of_int8() -> None:
    graph = gpusage.read_model(MODELS / "resnet50.onnx")
    built = Workload(batch_size=128, mode="infer", precision="fp16", engine="tensorrt")
    moved = {}
    for workload in (built, replace(built, layout="channels_last"), replace(built, precision="int8")):
        kernels = WorkloadAnalysis(graph, workload).kernels
        moved[workload] = float(kernels.traffic_bytes @ kernels.counts)
    half, ordered, narrow = moved.values()
    assert half == ordered
    assert narrow == pytest.approx(half / 2, rel=0.01)  # at this batch weights are little of it


def test_weights_of_fewer_bits_are_read_sooner_and_widened_for_nothing() -> None:
    rate = MOST_SHARE * A100.bandwidth_bytes_per_s
    whole, of_8, of_4 = (token_s(served("compile", name), A100) for name in ("bf16-pure", "int8", "int4"))
    assert whole - of_8 == pytest.approx(LAYER / rate)
    assert whole - of_4 == pytest.approx(LAYER * (2 - 0.5 - 2.5 / 128) / rate)


@pytest.mark.parametrize(
    ("engine", "precision", "gpu", "speedup"),
    [
        ("vllm", "fp8", H100, 2),
        ("vllm", "fp8", A100, 1),  # no units: widened first
        ("tensorrt-llm", "w8a8", A100, 2),
        ("tensorrt-llm", "w8a8", V100, 1),
        ("vllm", "w8a8", A100, 2),
        ("tensorrt-llm", "int8", A100, 1),  # of weights alone, as ...
        ("tensorrt", "int8", A100, 2),
        ("vllm", "int8", A100, 1),  # ... GPTQ's
        ("tensorrt-llm", "int4", H100, 1),
    ],
)
def test_numbers_of_one_byte_are_multiplied_at_twice_the_rate_where_a_gpu_can(
    engine: Engine, precision: Precision, gpu: Gpu, speedup: int
) -> None:
    workload = served(engine, precision, batch_size=64, prompt=2048)
    first = WorkloadAnalysis(LLAMA, workload).passes[0]
    chosen = (first.operator_class == OperatorClass.PRODUCT) & (first.inner == 11008)
    flop, count = float(first.flop[chosen].sum()), 2 * 64 * 2048 * 4096 * 11008
    assert flop == pytest.approx(count)
    times = times_on(WorkloadAnalysis(LLAMA, workload).efficiency, first, [gpu], precision).as_run
    peak = gpu.peak_flop_per_s["fp16"] * sustained_share(gpu)
    assert times.compute_s[chosen, 0].sum() == pytest.approx(count / (speedup * MATRIX_SHARE * peak))


def test_attention_is_one_kernel_whatever_the_graph_has() -> None:
    t5 = gpusage.read_model(str(MODELS / "t5_small.onnx"))
    decoding = Decoding(prompt_tokens=512, new_tokens=64)
    eager, engine = (
        WorkloadAnalysis(t5, replace(served(name, "fp16-pure"), generate=decoding)) for name in ("eager", "vllm")
    )
    written = [float(one.lowering.written_bytes @ one.lowering.structure.counts) for one in (eager, engine)]
    # 6 layers of the encoder, 8 heads: scores, scores with positions and softmax are written, 2 bytes or more each
    assert written[0] - written[1] > 6 * 3 * 2 * 8 * 512**2
    assert engine.peak.taken.value < eager.peak.taken.value


def test_tensorrt_llm_has_a_cache_of_fp8_beside_weights_of_fp8() -> None:
    halves = [
        WorkloadAnalysis(LLAMA, served(engine, "fp8")).decoding.kv_cache_bytes  # type: ignore[union-attr]
        for engine in ("vllm", "tensorrt-llm")
    ]
    assert halves == [4 * 4096, 2 * 4096]


def test_a_server_takes_the_gpu_s_memory_and_needs_what_it_needs() -> None:
    plain, server = (predicted(LLAMA, served(one), [A100])[0] for one in ("compile", "vllm"))
    assert server.memory_bytes.value == 0.9 * A100.memory_bytes > plain.memory_bytes.value
    assert server.required_memory_bytes == plain.required_memory_bytes
    assert server.familiar
    assert server.notes[-1] == ENGINE_WARNING
    (limited,) = predicted(LLAMA, replace(served("vllm"), memory_share=0.47), [A100])
    assert limited.memory_bytes.value == 0.47 * A100.memory_bytes
    assert not any("for the host to launch" in note for note in server.notes)


@pytest.mark.parametrize("precision", ["int4", "int8", "nf4", "fp8", "bnb-int8", "w8a8"])
def test_eager_pytorch_launches_more_for_quantised_weights(precision: Precision) -> None:
    plain, quantised = (WorkloadAnalysis(LLAMA, served("eager", name)).passes[1] for name in ("bf16-pure", precision))
    # the layer's six products; the last product of the model stays as it is
    assert quantised.host_counts[1] - plain.host_counts[1] == 6 * DEQUANTIZATION_LAUNCHES[precision]


def test_bitsandbytes_int8_takes_several_times_as_long_as_gptqs_and_holds_as_much() -> None:
    gptq, bitsandbytes = (predicted(LLAMA, served("eager", name), [A100])[0] for name in ("int8", "bnb-int8"))
    assert bitsandbytes.step_time_s.value > 3 * gptq.step_time_s.value
    assert bitsandbytes.memory_bytes == gptq.memory_bytes
    assert any("write precision=bnb-int8" in note for note in gptq.notes)
    assert not any("write precision=bnb-int8" in note for note in bitsandbytes.notes)


def test_an_engine_s_account_adds_up() -> None:
    explained = explanation_of(LLAMA, served("vllm"), A100)
    assert sum(part.seconds.total_s for part in explained.classes) == pytest.approx(explained.step_time_s)
    assert explained.waiting_s == 0
