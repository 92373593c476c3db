"""Generation by a pipeline of GPUs: each has some of a model's layers, and they compute one after the other.

transformers does so with ``device_map="auto"``, llama.cpp with ``--split-mode layer``. A GPU holds its part of the
weights and of the keys and values, and sends the output of its last layer to the next GPU. All others wait meanwhile,
so several GPUs are no faster than one that has room for the whole model.
"""

from __future__ import annotations

from dataclasses import replace

from gpusage.predictors.parallel.tensor_parallel import Exchange
from gpusage.predictors.work.generation import GenerationWork
from gpusage.predictors.work.lowering import Lowering
from gpusage_hooks.types import Workload


def is_pipeline(workload: Workload) -> bool:
    """Return whether the GPUs of *workload* compute one after the other."""
    return workload.strategy == "pipeline" and workload.gpus > 1 and workload.generate is not None


def stage_work(work: GenerationWork, gpu_count: int) -> GenerationWork:
    """Return *work* with the weights, keys and values that each of *gpu_count* GPUs holds, if all hold alike.

    What a pass computes in between lies on one GPU at a time, so it is not divided.
    """
    return work.divided(lambda one: _stage_lowering(one, gpu_count), gpu_count)


def _stage_lowering(lowering: Lowering, gpu_count: int) -> Lowering:
    return replace(
        lowering,
        parameter_bytes=lowering.parameter_bytes / gpu_count,
        parameter_count=-(-lowering.parameter_count // gpu_count),
    )


def stage_exchange(sums: Exchange, gpu_count: int) -> Exchange:
    """Return what the stages send in each pass, as so many *sums* over all GPUs, each of which takes no less."""
    return replace(sums, prompt_count=gpu_count - 1, token_count=gpu_count - 1)
