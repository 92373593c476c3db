"""What a workload needs from each GPU, by one physical model: step time, memory and activity follow from each other."""

from __future__ import annotations

from collections.abc import Sequence

from gpusage.predictors.question import question_of
from gpusage_hooks import hookimpl
from gpusage_hooks.types import Activity, Gpu, Interval, MemoryInterval, ModelGraph, Workload


@hookimpl(trylast=True)
def predict_step_time(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Sequence[Interval]:
    """Predict the seconds of one step on each GPU."""
    return question_of(graph, workload).step_time_s(gpus)


@hookimpl(trylast=True)
def predict_memory(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Sequence[MemoryInterval]:
    """Predict the peak bytes of device memory on each GPU, context included."""
    return question_of(graph, workload).memory_bytes(gpus)


@hookimpl(trylast=True)
def predict_activity(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> Sequence[Activity]:
    """Predict how busy the workload keeps each GPU when alone."""
    return question_of(graph, workload).activity(gpus)


def doubts(graph: ModelGraph, workload: Workload, gpus: Sequence[Gpu]) -> list[tuple[str, ...]]:
    """Return, for each of *gpus*, one sentence for each reason not to trust its figures as usual."""
    return question_of(graph, workload).doubts(gpus)
