"""How long each kernel takes on each GPU, and what that adds up to: the roofline, all GPUs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpusage.predictors.efficiency import COMPUTE, FILL, HOST_S, KERNEL_LATENCY_S, MEMORY, OVERLAP, ComputePath
from gpusage.predictors.identity import Identity
from gpusage.predictors.kernels import Kernels, kernels_of
from gpusage.predictors.lowering import FloatArray
from gpusage.predictors.operators import OperatorClass
from gpusage_hooks.types import Gpu, ModelGraph, Precision, Workload

_CUDNN_CLASSES = (OperatorClass.CONVOLUTION, OperatorClass.RECURRENT)
"""In PyTorch ``fp32`` lets cuDNN use TF32 where the GPU has it; matrix products stay in full precision."""
_FIRST_TENSOR_CORES = (7, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one step, one entry a GPU.

    Attributes:
        step_s: The step, from one to the next.
        busy_s: Some kernel runs.
        sm_s: SMs are busy, the mean over all SMs.
        dram_s: The memory would be busy if it moved bytes at its peak.
        host_share: How far launches on the host decide the step, 0 to 1; a share, not seconds.
    """

    step_s: FloatArray
    busy_s: FloatArray
    sm_s: FloatArray
    dram_s: FloatArray
    host_share: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What each GPU does a second: shape (classes, GPUs), or (GPUs,)."""

    matrix_flop_per_s: FloatArray
    flop_per_s: FloatArray
    bytes_per_s: FloatArray
    peak_bytes_per_s: FloatArray
    sm_count: FloatArray


def timing_of(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Timing:
    """Return the times of one step of *workload* on *gpus*, worked out once for each question."""
    kernels = kernels_of(graph, workload)
    return _timing(Identity(kernels), tuple(map(Identity, gpus)), workload.precision)


@lru_cache(maxsize=512)
def _timing(key: Identity[Kernels], gpus: tuple[Identity[Gpu], ...], precision: Precision) -> Timing:
    kernels, rates = key.value, _rates(gpus, precision)
    operator_class, column = kernels.operator_class, np.newaxis
    flop_per_s = np.where(
        kernels.matrix_units[:, column] > 0, rates.matrix_flop_per_s[operator_class], rates.flop_per_s[operator_class]
    )
    waves = kernels.blocks[:, column] / rates.sm_count
    compute_s = kernels.flop[:, column] / flop_per_s * (1.0 + FILL / waves)
    traffic_s = kernels.traffic_bytes[:, column] / rates.bytes_per_s[operator_class]
    kernel_s = np.maximum(compute_s, traffic_s) + KERNEL_LATENCY_S * kernels.launches[:, column]
    busy_s = kernels.counts @ kernel_s
    host_s = float(kernels.host_counts @ HOST_S)
    step_s = (busy_s**OVERLAP + host_s**OVERLAP) ** (1.0 / OVERLAP)
    return Timing(
        step_s=step_s,
        busy_s=busy_s,
        sm_s=kernels.counts @ (kernel_s * np.minimum(waves, 1.0)),
        dram_s=(kernels.counts @ kernels.traffic_bytes) / rates.peak_bytes_per_s,
        host_share=(host_s / step_s) ** OVERLAP,
    )


@lru_cache(maxsize=64)
def _rates(gpus: tuple[Identity[Gpu], ...], precision: Precision) -> _Rates:
    rows = [key.value for key in gpus]
    bandwidth = np.array([gpu.bandwidth_bytes_per_s for gpu in rows])
    return _Rates(
        matrix_flop_per_s=np.array(
            [[_matrix_rate(gpu, operator_class, precision) for gpu in rows] for operator_class in OperatorClass]
        ),
        flop_per_s=np.array([[_plain_rate(gpu, operator_class) for gpu in rows] for operator_class in OperatorClass]),
        bytes_per_s=MEMORY[:, np.newaxis] * bandwidth,
        peak_bytes_per_s=bandwidth,
        sm_count=np.array([float(gpu.sm_count) for gpu in rows]),
    )


def _plain_rate(gpu: Gpu, operator_class: OperatorClass) -> float:
    return float(COMPUTE[operator_class, ComputePath.CUDA_CORES] * gpu.peak_flop_per_s["fp32"])


def _matrix_rate(gpu: Gpu, operator_class: OperatorClass, precision: Precision) -> float:
    """Return FLOP/s of a class where its shapes suit matrix units; without such units, those of the CUDA cores."""
    wanted = "tf32" if precision == "fp32" and operator_class in _CUDNN_CLASSES else precision
    peak = gpu.peak_flop_per_s.get(wanted)
    if wanted == "fp32" or peak is None or gpu.compute_capability < _FIRST_TENSOR_CORES:
        return _plain_rate(gpu, operator_class)
    path = ComputePath.TF32 if wanted == "tf32" else ComputePath.HALF
    return float(COMPUTE[operator_class, path] * peak)
