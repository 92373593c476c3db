"""How many times as long kernels take on a part of a GPU: a share under MPS, or a slice under MIG.

A kernel of few thread blocks does not fill a GPU, so with fewer SMs it takes no longer until its blocks have to wait
for one another. Memory is as fast as the part says: a share alone has all of it, as far as its SMs can draw it, a slice
its own part. What starts a kernel takes as long as before.

This rule is fitted on kernels that PyTorch launches one by one. Nobody has published what engines, compiled passes and
text generation cost on shares. An engine picks kernels that fill the GPU that it is built on. So there each kernel is
predicted anew on the part as a GPU of its own, with bandwidth in proportion (docs/decisions/predictors.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from gpusage.devices.object_keys import Identity
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.artifacts import SlowdownRule
from gpusage.predictors.times.engines import engine_of
from gpusage.predictors.times.kernel_times import streaming_bytes_per_s
from gpusage_hooks.types import Gpu

_TINY_S = 1e-30


def slowdown_rule(analysis: WorkloadAnalysis) -> SlowdownRule:
    """Return what a part of a GPU costs: measured of kernels that PyTorch launches one by one, else in proportion."""
    rules = analysis.pretrained.slowdown
    is_measured = engine_of(analysis.workload) == "eager" and not analysis.workload.generate
    return rules.eager if is_measured else rules.proportional


def growths(analysis: WorkloadAnalysis, gpus: Sequence[Gpu], parts: Sequence[Sequence[Gpu]]) -> FloatArray:
    """Return the GPU's own time on each part over that on the whole GPU, at least 1, the parts of all *gpus* in a row.

    Args:
        analysis: Of the workload.
        gpus: Whole GPUs.
        parts: For each of *gpus* its parts.
    """
    return growths_with(slowdown_rule(analysis).filling_blocks, analysis, gpus, parts)


def growths_with(
    filling_blocks: float | None, analysis: WorkloadAnalysis, gpus: Sequence[Gpu], parts: Sequence[Sequence[Gpu]]
) -> FloatArray:
    """Return the same as `growths`, by the rule of *filling_blocks*.

    Args:
        filling_blocks: So many blocks per SM fill a GPU; ``None`` where all is in proportion.
            Blocks are counted as in `gpusage.predictors.times.kernels`, by assumption.
        analysis: As there.
        gpus: As there.
        parts: As there.
    """
    whole = np.repeat(np.arange(len(gpus)), [len(of_gpu) for of_gpu in parts])
    if filling_blocks is None:
        before_s, after_s = analysis.timing(gpus).kernels_s[whole], analysis.kernels_s(_in_proportion(gpus, parts))
    else:
        seconds = analysis.kernels.counts[:, np.newaxis] * analysis.on(gpus).kernel_times.total_s[:, whole]
        before_s = seconds.sum(axis=0)
        after_s = np.einsum("kp,kp->p", seconds, _kernel_growths(filling_blocks, analysis, gpus, parts))
    growth = np.divide(after_s, before_s, out=np.ones_like(before_s), where=before_s > 0)  # 0 where all nodes are views
    return np.asarray(np.maximum(growth, 1.0))


def kernel_growths(analysis: WorkloadAnalysis, gpu: Gpu, parts: Sequence[Gpu]) -> FloatArray:
    """Return each kernel's time on *parts* of *gpu* over that on the whole of it, at least 1: (kernels, parts)."""
    filling_blocks = slowdown_rule(analysis).filling_blocks
    if filling_blocks is None:
        seconds = analysis.on([gpu, *_in_proportion([gpu], [parts])]).kernel_times.total_s
        growth = seconds[:, 1:] / np.maximum(seconds[:, :1], _TINY_S)
    else:
        growth = _kernel_growths(filling_blocks, analysis, [gpu], [parts])
    return np.asarray(np.maximum(growth, 1.0))


def _kernel_growths(
    filling_blocks: float, analysis: WorkloadAnalysis, gpus: Sequence[Gpu], parts: Sequence[Sequence[Gpu]]
) -> FloatArray:
    """Return each kernel's time on each part over that on the whole GPU: (kernels, parts).

    The time of the arithmetic is in proportion to the 4-norm of two numbers: the kernel's blocks per SM, and the
    blocks with which it fills the GPU. As on the whole GPU, a kernel takes the 4-norm of arithmetic and traffic.
    """
    whole = np.repeat(np.arange(len(gpus)), [len(of_gpu) for of_gpu in parts])
    blocks = analysis.kernels.blocks[:, np.newaxis] / filling_blocks
    before, after = (
        1.0 + (blocks / np.array([each.sm_count for each in some])) ** 4 for some in (gpus, _in_a_row(parts))
    )
    bandwidth_ratios = np.array(
        [
            streaming_bytes_per_s(gpu) / streaming_bytes_per_s(part)
            for gpu, of_gpu in zip(gpus, parts, strict=True)
            for part in of_gpu
        ]
    )
    times = analysis.on(gpus).kernel_times
    compute, traffic, launch_s = times.compute_s**4, times.traffic_s**4, times.launch_s
    before_s = (compute + traffic) ** 0.25 + launch_s
    after_s = (compute[:, whole] * after / before[:, whole] + traffic[:, whole] * bandwidth_ratios**4) ** 0.25
    growth: FloatArray = (after_s + launch_s) / np.maximum(before_s[:, whole], _TINY_S)
    return growth


def _in_a_row(parts: Sequence[Sequence[Gpu]]) -> list[Gpu]:
    return [part for of_gpu in parts for part in of_gpu]


def _in_proportion(gpus: Sequence[Gpu], parts: Sequence[Sequence[Gpu]]) -> list[Gpu]:
    """Return all *parts* in a row, the memory of shares, which have the name of their GPU, in proportion."""
    return [
        _share_in_proportion(Identity(gpu), Identity(part)) if part.name == gpu.name else part
        for gpu, of_gpu in zip(gpus, parts, strict=True)
        for part in of_gpu
    ]


@lru_cache(maxsize=1024)
def _share_in_proportion(gpu: Identity[Gpu], share: Identity[Gpu]) -> Gpu:
    """Return *share* with as much of the bandwidth of *gpu* as it has of its arithmetic, the same object each time."""
    part = share.value.peak_flop_per_s["fp32"] / gpu.value.peak_flop_per_s["fp32"]
    return replace(share.value, bandwidth_bytes_per_s=gpu.value.bandwidth_bytes_per_s * part)
