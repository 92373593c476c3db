"""What the step time's rows span: what a model or a GPU is outside of is not familiar (`predictors.familiarity`)."""

from __future__ import annotations

from collections.abc import Iterable

from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.extrapolation import work_shares
from gpusage.predictors.work.lowering import forward_flop
from gpusage_hooks.types import ModelGraph, Workload
from gpusage_lab.learning.step_samples import Measurements
from gpusage_planning.zoo import load_zoo


def ranges(measurements: Measurements) -> dict[str, tuple[float, float]]:
    """Return the least and the greatest of each quantity; FLOP are of a step's forward pass."""
    graphs = [_graph(row.key) for row in measurements.rows]
    batches = [row.workload.batch_size for row in measurements.rows]
    return {
        "batch_size": _span(batches),
        "flop": _span(batch * forward_flop(graph) for batch, graph in zip(batches, graphs, strict=True)),
        "launch_year": _span(
            sample.gpu.launch_year
            for sample in (*measurements.samples, *measurements.operators, *measurements.products)
        ),
        "parameter_count": _span(graph.parameter_count for graph in graphs),
        "step_s": _span(row.measured_s for row in measurements.rows),
    }


def training_coverage(measurements: Measurements) -> dict[str, tuple[str, ...]]:
    """Return the operators that do the work in some row's model, and the precisions."""
    works = {
        row.key: work_shares(WorkloadAnalysis(_graph(row.key), Workload(mode="infer")).lowering)
        for row in measurements.rows
    }
    return {
        "operator": tuple(sorted({op_type for shares in works.values() for op_type in shares})),
        "precision": tuple(sorted({row.workload.precision for row in measurements.rows})),
    }


def _graph(key: str) -> ModelGraph:
    return load_zoo().graph(key)


def _span(values: Iterable[float]) -> tuple[float, float]:
    collected = [float(value) for value in values]
    return min(collected), max(collected)
