"""The need of a job of several whole GPUs: as it is taken to run, and the least in any way in which it may run.

Training that does not say how is data parallel, and a model that answers is copied to each GPU. Where no GPU has the
memory for that, the job is taken to run fully sharded (FSDP), with activations computed again; an answering model
divided among its GPUs. A GPU is too small only where an equal part of all that the job needs is more than it has: no
division of layers, sequences or batches needs less.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from gpusage.decisions.prediction import Predictor, on_gpus
from gpusage.predictors.intervals import scaled
from gpusage_hooks.errors import GraphError
from gpusage_hooks.types import Gpu, GpuNeed, Job, ModelGraph, Workload

SeveralNeeds = tuple[Workload, tuple[GpuNeed, ...], tuple[GpuNeed | None, ...]]
"""How a job is taken to run, its needs so on each of some GPUs, and the least that it could need there in any way that
its user leaves open. It does not fit so where even the low end is more than the GPU has."""


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
    count, named = job.request.gpu_count, job.model_request.named if job.model_request else ()
    run = on_gpus(workload, count, named)
    alone = replace(run, gpus=1, tensor=1, context=1, expert=1, pipeline=1, virtual_pipeline=1, strategy="ddp")
    on_one = predictor.predict(graph, alone, gpus)

    def predict(workload: Workload) -> tuple[GpuNeed, ...]:
        """Return its needs: which GPU is faster is told well also of several, unless it is not even told of one."""
        needs = predictor.predict(graph, workload, gpus)
        return tuple(replace(need, familiar=one.familiar) for need, one in zip(needs, on_one, strict=True))

    usual = predict(run)
    if all(need.fits for need in usual) or (run.gpus != count and (run.gpus > 1 or "gpus" in named)):
        return run, usual, usual

    divided, least = _most_divided(run, count, named), usual
    with suppress(GraphError):  # its heads do not divide evenly; its layers might
        least = predict(divided)
    if not any(need.fits for need in usual) and any(need.fits for need in least):
        run, usual = divided, least
    if ("gpus" if run.mode == "infer" else "strategy") not in named:
        on_one = predictor.predict(graph, replace(alone, checkpointing=divided.checkpointing), gpus)
        least = tuple(replace(need, required_memory_bytes=scaled(need.required_bytes, 1 / count)) for need in on_one)

    # Peaks of several GPUs are hardly known: a GPU is too small only where even the low end is more than it has.
    known = [need.required_bytes.low <= gpu.memory_bytes for need, gpu in zip(least, gpus, strict=True)]
    return run, usual, tuple(replace(need, fits=fits) for need, fits in zip(least, known, strict=True))


def _most_divided(run: Workload, count: int, named: Collection[str]) -> Workload:
    """Return *run* as it is taken to run on *count* GPUs that lack memory, of the ways that *named* keys leave open."""
    if run.mode == "infer":
        return run if run.generate is None else replace(run, gpus=count)
    strategy = run.strategy if "strategy" in named else "fsdp"
    return replace(run, strategy=strategy, checkpointing=run.checkpointing or "checkpointing" not in named)
