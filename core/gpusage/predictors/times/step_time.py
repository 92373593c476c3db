"""Seconds of one step: what its kernels add up to, the host, the learned residual, and the interval around the sum.

**Inference engines** run a pass as a list of fused kernels that is recorded once, so that no kernel waits for a host to
launch it: a compiler (`torch.compile` with CUDA graphs), TensorRT, and the programs that serve (vLLM, TensorRT-LLM). A
kernel takes the longer of two times, and a little more:

    max(bytes / memory rate, FLOP / arithmetic rate) + floor

A pass over one token streams weights, keys and values, so its bytes decide. Weights of 8 or 4 bits are widened in
registers, which costs no time of its own; fp8, w8a8 (what vLLM calls INT8 and TensorRT-LLM SmoothQuant), and TensorRT's
int8 are multiplied as they are where a GPU can. TensorRT-LLM's ``int8`` is of weights alone, as GPTQ's is.

Source:
    Engines: tokens per second that were published of gpt-fast, torchao, vLLM, SGLang and TensorRT-LLM, and the
    milliseconds that were published of BERT, DeBERTa, ViT, Swin, EfficientNet and ResNet with TensorRT and
    FasterTransformer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, hypot
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from gpusage.devices.precisions import HALF, NARROW_SPEEDUP, has_narrow_units
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.intervals import interval_around, unknown_share
from gpusage.predictors.times.efficiency import HOST_TERMS, NO_RESIDUAL, OVERLAP, Efficiency, KernelSeconds, features_of
from gpusage.predictors.times.kernel_times import Ideal, KernelTimes, ideal_times, kernel_times, min_streaming_s
from gpusage.predictors.times.kernels import Kernels
from gpusage.predictors.work.lowering import is_fusion_measured
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Engine, Gpu, Interval, ModelGraph, Precision, Workload
from gpusage_hooks.types.needs import Vendor

MATRIX_SHARE = 0.68
"""What products reach of the arithmetic that a GPU holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """How an engine runs kernels.

    Attributes:
        floor_s: What each kernel takes in addition; with it, what a server does between two passes.
        multiplies_int8: Whether it multiplies numbers of 8 bits as they are.
        reserves_cache: Whether it takes a part of a free GPU's memory for blocks of its cache.
        memory_option: Its option for that part, if it is of the GPU's size; of what is free, MPS's cap leaves no more.
    """

    floor_s: float
    multiplies_int8: bool = False
    reserves_cache: bool = False
    memory_option: str = ""


ENGINES: Mapping[Engine, EngineRules] = {
    "compile": EngineRules(floor_s=5.8e-6),
    "vllm": EngineRules(floor_s=8.9e-6, reserves_cache=True, memory_option="--gpu-memory-utilization"),
    "tensorrt-llm": EngineRules(floor_s=7.7e-6, reserves_cache=True),
    "tensorrt": EngineRules(floor_s=5.0e-6, multiplies_int8=True),
}


class EngineGpus(NamedTuple):
    """The GPUs on which an engine runs: as people read it, and the vendors; a GPU's row names the exceptions."""

    words: str
    vendors: tuple[Vendor, ...]


ENGINE_GPUS: Mapping[Engine, EngineGpus] = {
    "vllm": EngineGpus("Nvidia's since Volta, or AMD's since MI200", ("nvidia", "amd")),
    "tensorrt-llm": EngineGpus("Nvidia's since Volta", ("nvidia",)),
    "tensorrt": EngineGpus("Nvidia's", ("nvidia",)),
}
"""By engine; PyTorch, compiled or not, is taken to run on all."""
_PRODUCTS = (OperatorClass.PRODUCT, OperatorClass.BATCHED_PRODUCT, OperatorClass.CONVOLUTION)
_IS_PRODUCT = np.array([one in _PRODUCTS for one in OperatorClass])


def engine_of(workload: Workload) -> Engine:
    """Return what runs *workload*: ``compile=on`` and ``engine=compile`` mean the same."""
    return "compile" if workload.compile and workload.engine == "eager" else workload.engine


def runs_on(engine: Engine, gpu: Gpu) -> bool:
    """Return whether *engine* has kernels for *gpu*; PyTorch, compiled or not, is taken to run on all."""
    if engine not in ENGINE_GPUS:
        return True
    return gpu.vendor in ENGINE_GPUS[engine].vendors and engine not in gpu.unsupported_engines


def engine_notes(gpu: Gpu, engine: Engine) -> tuple[str, ...]:
    """Return one sentence where *engine* does not run on *gpu*."""
    if engine not in ENGINE_GPUS or runs_on(engine, gpu):
        return ()
    return (f"Engine {engine} does not run on {gpu.name}; its GPUs are {ENGINE_GPUS[engine].words}.",)


def replays_graph(workload: Workload) -> bool:
    """Return whether an engine runs *workload* as a recorded list of kernels; a compiled pass alone is launched."""
    engine = engine_of(workload)
    return workload.mode == "infer" and engine != "eager" and (engine != "compile" or workload.generate is not None)


def kind_of(workload: Workload) -> str:
    """Return what kind of workload it is to the width of its interval; names that begin alike are of like kinds."""
    if workload.mode == "train":
        if workload.gpus == 1:
            return f"train, {workload.layout}"
        is_divided = max(workload.gpus_per_replica, workload.expert) > 1
        return f"train, several GPUs, {'divided' if is_divided else 'whole'}"

    if workload.generate or replays_graph(workload):
        engine = "eager" if engine_of(workload) == "eager" else "engine"
        several = ", several GPUs" if workload.gpus > 1 else ""
        return f"{'answer' if workload.generate else 'pass'}, {engine}{several}"
    return f"infer, {'compiled' if is_fusion_measured(workload) else workload.layout}"


RESERVED_SHARE = 0.9
"""Of the GPU's memory that vLLM takes for weights and blocks of the cache, and TensorRT-LLM of what weights leave.

Source: the defaults of vLLM's ``--gpu-memory-utilization`` and of ``KvCacheConfig.free_gpu_memory_fraction``.
"""


def reserved_share(workload: Workload) -> float:
    """Return the part of the memory that it sees that an engine takes for weights and blocks of its cache, else 0."""
    if workload.engine not in ENGINES or not ENGINES[workload.engine].reserves_cache:
        return 0.0
    return workload.memory_share or RESERVED_SHARE


def cache_bytes(workload: Workload, float_bytes: int) -> int:
    """Return the bytes of a number in the cache of keys and values; *float_bytes* are those of an activation."""
    is_narrow = engine_of(workload) == "tensorrt-llm" and workload.precision == "fp8"
    return 1 if is_narrow else float_bytes


@lru_cache(maxsize=8)
def with_engine(efficiency: Efficiency, engine: Engine) -> Efficiency:
    """Return *efficiency* where *engine* runs the kernels: nothing of it that was learned from PyTorch's stays."""
    return replace(
        efficiency,
        engine=engine,
        host_s=np.zeros(HOST_TERMS),
        gpu_log_factors={},
        residual=NO_RESIDUAL,
    )


class Times(NamedTuple):
    """Kernels at the peaks of GPUs, and as they run."""

    ideal: Ideal
    as_run: KernelTimes


def times_on(
    efficiency: Efficiency,
    kernels: Kernels,
    gpus: Sequence[Gpu],
    precision: Precision,
    of_features: type[np.floating[Any]] = np.float64,
) -> Times:
    """Return the times of *kernels* on *gpus*; the features of learned ones may have fewer digits."""
    ideal = ideal_times(kernels, gpus, precision, of_features)
    if efficiency.engine == "eager":
        return Times(ideal, kernel_times(efficiency, kernels, ideal))

    # An engine's kernel takes the longer of its two times, and what the engine adds to each.
    rules = ENGINES[efficiency.engine]
    is_native = rules.multiplies_int8 or precision in ("fp8", "w8a8")
    speedups = [NARROW_SPEEDUP if is_native and has_narrow_units(gpu, precision) else 1.0 for gpu in gpus]
    is_product = _IS_PRODUCT[kernels.operator_class][:, np.newaxis]
    compute_s = ideal.compute_s / (MATRIX_SHARE * np.where(is_product, speedups, 1.0))
    traffic_s = ideal.traffic_s / ideal.streaming_share
    launch_s = rules.floor_s * kernels.launches[:, np.newaxis]
    total_s: FloatArray = np.maximum(traffic_s, compute_s) + launch_s
    as_run = KernelTimes(
        total_s=total_s, learned_s=total_s, compute_s=compute_s, traffic_s=traffic_s, launch_s=launch_s
    )
    return Times(ideal, as_run)


# A mean kernel of this length is half short; of 50, 100, 200 and 400 us the one that covered each source best.
_SHORT_S = 50e-6
LEAST_HOST_PART = 0.25
"""Of a step, each to the power of `OVERLAP`: a smaller part of it shows nothing of a host."""
CALIBRATED_SHARE = 0.9
"""What is left of the error of short kernels where the site's host was measured.

Chosen so that of the public campaigns, each one's host measured by three other models of it, 86 % of the steps lie
inside (``python bench/calibration.py``).
"""
_TINY_S = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one step, one entry per GPU.

    Attributes:
        step_s: The step, from one to the next.
        busy_s: Some kernel runs.
        sm_s: SMs are busy, the mean over all SMs.
        dram_s: The memory would be busy if it moved bytes at its peak.
        kernels_s: The sum of the kernels, before what is known of the GPU or learned from whole steps.
        short_share: How far kernels are so short that what starts them decides, 0 to 1; a share, not seconds.
        features: Of `efficiency.STEP_FEATURES`, one row per GPU.
    """

    step_s: FloatArray
    busy_s: FloatArray
    sm_s: FloatArray
    dram_s: FloatArray
    kernels_s: FloatArray
    short_share: FloatArray
    features: FloatArray


def timing_with(efficiency: Efficiency, kernels: Kernels, gpus: Sequence[Gpu], precision: Precision) -> Timing:
    """Return the times of *kernels* on *gpus* as *efficiency* has it."""
    ideal, times = times_on(efficiency, kernels, gpus, precision)
    names = [gpu.calibration for gpu in gpus]
    factors = np.exp([efficiency.gpu_log_factors.get(name, 0.0) for name in names])  # 1 where it was not measured

    # The host launches ahead of the GPU, so that the longer of the two decides.
    alone_s = kernels.counts @ times.total_s
    busy_s = alone_s * factors
    host_s = float(kernels.host_counts @ efficiency.host_s) * np.fromiter(map(attrgetter("host_factor"), gpus), float)
    step_s = (busy_s**OVERLAP + host_s**OVERLAP) ** (1.0 / OVERLAP)

    # The residual was fitted on the kernels' times as learned, before bounds; it corrects all that they add up to.
    seconds = KernelSeconds(total_s=times.learned_s, compute_s=ideal.compute_s, traffic_s=ideal.traffic_s)
    rows = features_of(kernels, seconds, is_half=precision in HALF)
    missed = np.exp(efficiency.residual.log_factors(rows, names))
    if efficiency.is_streaming:
        at_least_s = kernels.counts @ min_streaming_s(ideal)
        missed = np.maximum(missed, at_least_s / np.maximum(busy_s, _TINY_S))

    return Timing(
        step_s=step_s * missed,
        busy_s=busy_s * missed,
        sm_s=kernels.counts @ (times.total_s * np.minimum(ideal.waves, 1.0)) * factors * missed,
        dram_s=kernels.counts @ ideal.traffic_s,
        kernels_s=alone_s,
        short_share=_SHORT_S / (_SHORT_S + alone_s / max(float(kernels.counts.sum()), 1.0)),
        features=rows,
    )


def host_factor_of(measured_s: float, predicted_s: float, busy_s: float) -> float:
    """Return how many times as long as usual the host takes where a step takes *measured_s*; NaN if it cannot show.

    Args:
        measured_s: Of the step.
        predicted_s: The same for a usual host.
        busy_s: Of the GPU, as predicted: what it hides of a host is not seen.
    """
    host, measured = predicted_s**OVERLAP - busy_s**OVERLAP, measured_s**OVERLAP - busy_s**OVERLAP
    is_shown = host >= LEAST_HOST_PART * predicted_s**OVERLAP and measured > 0
    return float((measured / host) ** (1.0 / OVERLAP)) if is_shown else float("nan")


def decoding_timing(whole: Timing, first: Timing, then: Timing, count: int) -> Timing:
    """Return the times of an answer from those of its two kinds of passes.

    Its passes follow one another: each waits for the token before it, so the host's work for one pass is never hidden
    behind the GPU's work for another.

    Args:
        whole: Of all kernels of the answer, as if the host could prepare every pass at once.
        first: Of the pass over the prompt.
        then: Of a pass over one token.
        count: How often that runs.
    """
    return replace(
        whole,
        step_s=first.step_s + count * then.step_s,
        busy_s=first.busy_s + count * then.busy_s,
        sm_s=first.sm_s + count * then.sm_s,
    )


def step_times_s(
    efficiency: Efficiency, graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu], timing: Timing
) -> list[Interval]:
    """Return the seconds of one step of *graph* on each of *gpus*, around the points of *timing*."""
    deviations, unknown = efficiency.deviations, 2.0 * unknown_share(graph)
    # Several GPUs are known no better than one of them, whose errors add up where its kind has no width of its own.
    kind, on_one = kind_of(workload), kind_of(replace(workload, gpus=1))
    is_whole, known = on_one in deviations.of_kinds, deviations.of_settings.get(on_one, deviations.known)
    least = max(deviations.of_kinds.get(each, 0.0) for each in (kind, on_one))
    intervals = []
    for gpu, step_s, short_share in zip(gpus, timing.step_s.tolist(), timing.short_share.tolist(), strict=True):
        unseen = 0.0 if gpu.calibration in efficiency.gpu_log_factors else deviations.unseen_gpu
        short = deviations.short * (CALIBRATED_SHARE if gpu.host_factor != 1.0 else 1.0)
        of_parts = 0.0 if is_whole else hypot(known, unseen, short * short_share)  # independent errors
        intervals.append(interval_around(step_s, exp(hypot(max(least, of_parts), unknown))))
    if is_whole or workload.lora or workload.trainable == 1:
        return intervals

    # The point has a forward pass, gradients of all activations, and of the trained weights: 2 + trainable forward
    # passes. Where the trained weights are the model's last, gradients of activations stop there: 1 + 2 trainable.
    fewest = (1.0 + 2.0 * workload.trainable) / (2.0 + workload.trainable)
    return [replace(interval, low=interval.low * fewest) for interval in intervals]
