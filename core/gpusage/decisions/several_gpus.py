"""The need of a job of several whole GPUs: as it is taken to run, and the least in any way in which it may run.

Training that does not say how is data parallel, and a model that answers is copied to each GPU. Where no GPU has the
memory for that, the job is taken to run in the way that needs least: fully sharded (FSDP), with activations computed
again; an answering model divided among its GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from gpusage.decisions.prediction import Predictor, on_gpus
from gpusage.predictors.intervals import scaled
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Gpu, GpuNeed, Job, ModelGraph, Workload

SeveralNeeds = tuple[Workload, tuple[GpuNeed, ...], tuple[GpuNeed | None, ...]]
"""How a job is taken to run, its needs so on each of some GPUs, and its least needs there: in the way that needs least,
of those that its user leaves open. It does not fit so where even the low end is more than the GPU has."""


def predict_several(
    predictor: Predictor, graph: ModelGraph, job: Job, workload: Workload, gpus: Sequence[Gpu]
) -> SeveralNeeds:
    """Return the needs of *job*, of at least two whole GPUs, on each of *gpus*.

    Args:
        predictor: Of the site.
        graph: The model.
        job: The keys that its user wrote leave nothing open.
        workload: How it is run.
        gpus: As in `Predictor.predict`.

    Raises:
        GraphError: As in `Predictor.predict`.
        DeviceError: As in `Predictor.predict`.
    """
    count, run = job.request.gpu_count, on_gpus(workload, job.request.gpu_count)
    usual = predictor.predict(graph, run, gpus)
    if run.gpus not in (1, count) or all(need.fits for need in usual):
        return run, usual, usual

    divided = _most_divided(run, count, job.model_request.named if job.model_request else ())
    try:
        least = predictor.predict(graph, divided, gpus)
    except GraphError:  # its heads do not divide evenly; its layers might
        divided, least = run, usual
    if run.mode == "infer" and divided.gpus == 1:
        # No such division is predicted: at best, each GPU has an equal part.
        parts = [scaled(need.required_bytes, 1 / count) for need in usual]
        least = tuple(replace(need, required_memory_bytes=part) for need, part in zip(usual, parts, strict=True))
    if not any(need.fits for need in usual) and any(need.fits for need in least) and divided != run:
        run, usual = divided, least

    # Peaks of several GPUs are hardly known: a GPU is too small only where even the low end is more than it has.
    known = [need.required_bytes.low <= gpu.memory_bytes for need, gpu in zip(least, gpus, strict=True)]
    return run, usual, tuple(replace(need, fits=fits) for need, fits in zip(least, known, strict=True))


def _most_divided(run: Workload, count: int, named: Collection[str]) -> Workload:
    """Return *run* as each of *count* GPUs needs least memory, of the ways that *named* keys leave open."""
    if run.mode == "infer":
        return run if run.generate is None else replace(run, gpus=count)
    strategy = run.strategy if "strategy" in named else "fsdp"
    return replace(run, strategy=strategy, checkpointing=run.checkpointing or "checkpointing" not in named)
