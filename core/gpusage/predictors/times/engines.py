"""Inference engines: fused kernels that a CUDA graph replays, so that no kernel waits for a host to launch it.

A compiler (`torch.compile` with CUDA graphs), TensorRT, and the programs that serve (vLLM, TensorRT-LLM) run a pass as
a list of kernels that is recorded once. A kernel takes the longer of two times, and a little more:

    max(bytes / memory rate, FLOP / arithmetic rate) + floor

A pass over one token streams weights, keys and values, so its bytes decide. Weights of 8 or 4 bits are widened in
registers, which costs no time of its own; fp8, and in TensorRT and TensorRT-LLM int8, is multiplied as it is where a
GPU can.

The figures are fitted on tokens per second that were published of gpt-fast, torchao, vLLM, SGLang and TensorRT-LLM, and
on the milliseconds that were published of BERT, DeBERTa, ViT, Swin, EfficientNet and ResNet with TensorRT and
FasterTransformer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gpusage.devices.precisions import NARROW_SPEEDUP, has_narrow_units
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.times.efficiency import HOST_TERMS, Efficiency
from gpusage.predictors.times.kernel_times import Ideal, KernelTimes, ideal_times, kernel_times
from gpusage.predictors.times.kernels import Kernels
from gpusage.predictors.times.residual import NO_RESIDUAL
from gpusage.predictors.work.operators import OperatorClass
from gpusage_hooks.types import Engine, Gpu, Precision, Workload

MATRIX_SHARE = 0.68
"""What products reach of the arithmetic that a GPU holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """How an engine runs kernels.

    Attributes:
        floor_s: What each kernel takes in addition; with it, what a server does between two passes.
        deviation: How far 90 % of the published figures lie from the point, on the logarithmic scale.
        multiplies_int8: Whether it multiplies numbers of 8 bits as they are.
        reserves_cache: Whether it takes what is free of a GPU's memory for blocks of its cache.
    """

    floor_s: float
    deviation: float = 0.42
    multiplies_int8: bool = False
    reserves_cache: bool = False


ENGINES: Mapping[Engine, EngineRules] = {
    "compile": EngineRules(floor_s=5.8e-6),
    "vllm": EngineRules(floor_s=8.9e-6, reserves_cache=True),
    "tensorrt-llm": EngineRules(floor_s=7.7e-6, multiplies_int8=True, reserves_cache=True),
    "tensorrt": EngineRules(floor_s=5.0e-6, deviation=0.57, multiplies_int8=True),
}
_BEFORE_VOLTA = ("kepler", "pascal")


class EngineGpus(NamedTuple):
    """The GPUs on which an engine runs.

    Attributes:
        words: As people read it.
        too_old: By vendor, the generations of the catalogue on which it does not run.
    """

    words: str
    too_old: Mapping[str, Sequence[str]]


ENGINE_GPUS: Mapping[Engine, EngineGpus] = {
    "vllm": EngineGpus("Nvidia's since Volta, or AMD's since MI200", {"nvidia": _BEFORE_VOLTA, "amd": ("cdna",)}),
    "tensorrt-llm": EngineGpus("Nvidia's since Volta", {"nvidia": _BEFORE_VOLTA}),
    "tensorrt": EngineGpus("Nvidia's", {"nvidia": ()}),
}
"""By engine; PyTorch, compiled or not, is taken to run on all.

Source: the installation pages of vLLM (compute capability 7.0; MI200), the support matrix of TensorRT-LLM.
"""
_PRODUCTS = (OperatorClass.PRODUCT, OperatorClass.BATCHED_PRODUCT, OperatorClass.CONVOLUTION)
_IS_PRODUCT = np.array([one in _PRODUCTS for one in OperatorClass])


def engine_of(workload: Workload) -> Engine:
    """Return what runs *workload*: ``compile=on`` and ``engine=compile`` mean the same."""
    return "compile" if workload.compile and workload.engine == "eager" else workload.engine


def runs_on(engine: Engine, gpu: Gpu) -> bool:
    """Return whether *engine* has kernels for *gpu*; PyTorch, compiled or not, is taken to run on all."""
    if engine not in ENGINE_GPUS:
        return True
    too_old = ENGINE_GPUS[engine].too_old.get(gpu.vendor)
    return too_old is not None and gpu.generation not in too_old


def engine_notes(gpu: Gpu, engine: Engine) -> tuple[str, ...]:
    """Return one sentence where *engine* does not run on *gpu*."""
    if runs_on(engine, gpu):
        return ()
    return (f"Engine {engine} does not run on {gpu.name}; its GPUs are {ENGINE_GPUS[engine].words}.",)


def replays_graph(workload: Workload) -> bool:
    """Return whether an engine runs *workload* as a recorded list of kernels; a compiled pass alone is launched."""
    engine = engine_of(workload)
    return workload.mode == "infer" and engine != "eager" and (engine != "compile" or workload.generate is not None)


RESERVED_SHARE = 0.9
"""Of the GPU's memory that vLLM takes for weights and blocks of the cache, and TensorRT-LLM of what weights leave.

Source: the defaults of vLLM's ``--gpu-memory-utilization`` and of ``KvCacheConfig.free_gpu_memory_fraction``.
"""


def reserves_memory(workload: Workload) -> bool:
    """Return whether an engine takes what is free of a GPU's memory for blocks of its cache."""
    rules = ENGINES.get(workload.engine)
    return rules is not None and rules.reserves_cache and workload.generate is not None


def cache_bytes(workload: Workload, float_bytes: int) -> int:
    """Return the bytes of a number in the cache of keys and values; *float_bytes* are those of an activation."""
    is_narrow = engine_of(workload) == "tensorrt-llm" and workload.precision == "fp8"
    return 1 if is_narrow else float_bytes


@lru_cache(maxsize=8)
def with_engine(efficiency: Efficiency, engine: Engine) -> Efficiency:
    """Return *efficiency* where *engine* runs the kernels: nothing of it that was learned from PyTorch's stays."""
    deviations = replace(efficiency.deviations, known=ENGINES[engine].deviation, unseen_gpu=0.0, short=0.0)
    return replace(
        efficiency,
        engine=engine,
        host_s=np.zeros(HOST_TERMS),
        gpu_log_factors={},
        residual=NO_RESIDUAL,
        deviations=deviations,
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
    return Times(ideal, _engine_times(efficiency.engine, kernels, ideal, gpus, precision))


def _engine_times(
    engine: Engine, kernels: Kernels, ideal: Ideal, gpus: Sequence[Gpu], precision: Precision
) -> KernelTimes:
    rules = ENGINES[engine]
    is_product = _IS_PRODUCT[kernels.operator_class][:, np.newaxis]
    traffic_s = ideal.traffic_s / ideal.streaming_share
    is_native = rules.multiplies_int8 or precision == "fp8"
    speedups = [NARROW_SPEEDUP if is_native and has_narrow_units(gpu, precision) else 1.0 for gpu in gpus]
    compute_s = ideal.compute_s / (MATRIX_SHARE * np.where(is_product, speedups, 1.0))
    launch_s = rules.floor_s * kernels.launches[:, np.newaxis]
    total_s: FloatArray = np.maximum(traffic_s, compute_s) + launch_s
    return KernelTimes(total_s=total_s, learned_s=total_s, compute_s=compute_s, traffic_s=traffic_s, launch_s=launch_s)
