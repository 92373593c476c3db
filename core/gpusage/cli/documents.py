"""Values as JSON documents, by the names that `--json` promises; pure functions, nothing is printed here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from gpusage.experience.identity import unusual_settings
from gpusage.predictors import intervals
from gpusage.predictors.intervals import inverse, other_factor, product, scaled
from gpusage_hooks.job_values import BYTES_PER_GBIT
from gpusage_hooks.types import (
    Cluster,
    Colocation,
    Decision,
    Gpu,
    GpuNeed,
    Interval,
    ModelGraph,
    RenderedDecision,
    Shape,
    Workload,
)
from gpusage_hooks.units import WHOLE_PERCENT

if TYPE_CHECKING:
    from gpusage.policies.sharing import SharePrice

FP32_BYTES = 4
ALONE = Interval(value=1.0, low=1.0, high=1.0)
# Of settings whose key is not their name: it has the value's unit.
_JSON_KEYS = {"network": "network_bytes_per_s"}


def interval(figure: Interval) -> dict[str, float]:
    """Return a predicted figure; six digits are more than it is worth."""
    return {"value": rounded(figure.value), "low": rounded(figure.low), "high": rounded(figure.high)}


def model(graph: ModelGraph) -> dict[str, Any]:
    """Return what a model is; ``flop`` is of one sample's forward pass, bytes of parameters count as fp32.

    Active are the parameters that one token meets: of a mixture's experts, those that it goes to.
    """
    from gpusage.predictors.work.lowering import forward_flop  # imports numpy

    active, tokens = graph.parameter_count, max(prod(sample_shape(graph.inputs[0][1])), 1) if graph.inputs else 1
    for node in graph.nodes:
        if node.op_type == "GroupedMatMul" and node.parameters:  # rows: each token once for each of its experts
            experts, *each = node.parameters[0]
            active -= round(prod(each) * max(experts - abs(node.inputs[0][0]) / tokens, 0))
    return {
        "name": graph.name,
        "source": graph.source,
        "node_count": len(graph.nodes),
        "parameter_count": graph.parameter_count,
        "active_parameter_count": active,
        "parameter_bytes": graph.parameter_count * FP32_BYTES,
        "flop": rounded(forward_flop(graph)),
    }


def manner_words(run: Workload) -> list[str]:
    """Return what is not as usual in how a model is run, for people: each key with the value that they write."""
    settings = unusual_settings(run)
    if run.network_bytes_per_s:
        settings["network"] = f"{run.network_bytes_per_s / BYTES_PER_GBIT:g} Gb/s"
    return [f"{key} {'on' if value is True else value}" for key, value in settings.items()]


def workload(graph: ModelGraph, run: Workload) -> dict[str, Any]:
    """Return how a model is run; ``shape`` has the sizes of each input of one sample."""
    document: dict[str, Any] = {
        "batch_size": run.batch_size,
        "mode": run.mode,
        "precision": run.precision,
        "optimizer": run.optimizer if run.mode == "train" else "none",
        "shape": {name: list(sample_shape(shape)) for name, shape in graph.inputs},
        **{_JSON_KEYS.get(key, key): value for key, value in unusual_settings(run).items()},
    }

    if run.steps is not None:
        document["steps"] = run.steps
    if run.slo is not None:
        document["slo"] = {"latency_s": run.slo.latency_s, "rate_per_s": run.slo.rate_per_s}
    return document


def need(
    predicted: GpuNeed, *, first: GpuNeed | None = None, steps: int | None = None, new_tokens: int | None = None
) -> dict[str, Any]:
    """Return what is predicted on one GPU.

    Args:
        predicted: The prediction.
        first: The need on the GPU that the speed-up is against, whole; none, no speed-up.
        steps: How many are to run, which makes a run time of the step time.
        new_tokens: That a language model writes for each sample.
    """
    document: dict[str, Any] = {
        "gpu": predicted.gpu,
        "share_percent": predicted.share_percent,
        "slowdown": interval(predicted.slowdown),
        "step_time_s": interval(predicted.step_time_s),
        "memory_bytes": interval(predicted.memory_bytes),
        "required_memory_bytes": interval(predicted.required_bytes),
        "share_memory_bytes": predicted.share_memory_bytes,
        "gpu_utilization": interval(predicted.gpu_utilization),
        "sm_activity": interval(predicted.sm_activity),
        "dram_activity": interval(predicted.dram_activity),
        "throughput_samples_per_s": interval(predicted.throughput_samples_per_s),
        **({"speedup": interval(speedup(predicted, first))} if first else {}),
        "fits": predicted.fits,
        "familiar": predicted.familiar,
        "notes": list(predicted.notes),
    }

    # An estimate from earlier jobs has memory and utilization alone.
    if predicted.source == "history":  # of a job without a model nothing else is known
        unknown = ("step_time_s", "throughput_samples_per_s", "sm_activity", "dram_activity")
        document |= {"source": predicted.source, **dict.fromkeys(unknown)}

    if new_tokens is not None:
        document["throughput_tokens_per_s"] = interval(scaled(predicted.throughput_samples_per_s, new_tokens))
    if steps is not None:
        document["run_time_s"] = interval(scaled(predicted.step_time_s, steps))
    return document


def colocation(names: Sequence[str], predicted: Colocation) -> dict[str, Any]:
    """Return what jobs do to each other, each called by its name in *names*."""
    jobs = zip(
        names, predicted.normalised_throughput, predicted.mps_thread_percent, predicted.memory_cap_bytes, strict=True
    )
    return {
        "gpu": predicted.gpu,
        "jobs": [
            {
                "model": name,
                "normalised_throughput": interval(throughput),
                "mps_thread_percent": percent,
                "memory_cap_bytes": cap_bytes,
            }
            for name, throughput, percent, cap_bytes in jobs
        ],
        "throughput_sum": interval(predicted.throughput_sum),
        "fits": predicted.fits,
        "recommended": predicted.recommended,
    }


def decision(script: str, chosen: Decision, rendered: RenderedDecision) -> dict[str, Any]:
    """Return the decision on one job script, with the request before and after in the workload manager's syntax."""
    return {
        "script": script,
        "code": chosen.code.value,
        "before": rendered.before,
        "after": rendered.after,
        "reasons": list(chosen.reasons),
        "need": need(chosen.need) if chosen.need else None,
    }


def share_price(price: SharePrice) -> dict[str, Any]:
    """Return what one share of one GPU type would cost, and why it is not taken."""
    return {
        "gpu": price.gpu,
        "share_percent": price.share_percent,
        "slowdown": interval(price.slowdown),
        "slowdown_beside_partners": interval(price.slowdown_with_partners),
        "taken": price.taken,
        "reason": price.reason,
    }


def gpu(row: Gpu) -> dict[str, Any]:
    """Return one row of the catalogue."""
    names = [item.name for item in dataclasses.fields(row)]
    shown = names[: names.index("watts_per_teraflop")]  # the others are for predictors
    document = {name: getattr(row, name) for name in shown}
    document["aliases"] = list(row.aliases)
    document["compute_capability"] = list(row.compute_capability)
    document["peak_flop_per_s"] = dict(row.peak_flop_per_s)
    return document


def cluster(observed: Cluster, origin: str) -> dict[str, Any]:
    """Return the cluster that decisions were made for, and where it is from."""
    return {"origin": origin, **dataclasses.asdict(observed)}


def speedup(predicted: GpuNeed, first: GpuNeed) -> Interval:
    """Return how many times faster than on the whole GPU of *first* a step runs; 1 exactly against itself.

    What a share costs is a ratio of its own, so it only divides what the whole GPU gains.
    """
    gain = ALONE if predicted.gpu == first.gpu else intervals.speedup(_on_whole_gpu(predicted), _on_whole_gpu(first))
    return gain if predicted.share_percent == WHOLE_PERCENT else product(gain, inverse(predicted.slowdown))


def _on_whole_gpu(predicted: GpuNeed) -> GpuNeed:
    """Return the need on the whole GPU, with the step time alone."""
    if predicted.share_percent == WHOLE_PERCENT:
        return predicted
    return replace(predicted, step_time_s=other_factor(predicted.step_time_s, predicted.slowdown))


def sample_shape(shape: Shape) -> tuple[int, ...]:
    """Return the shape of one sample: a first dimension that follows the batch is left out."""
    sizes = shape[1:] if shape and shape[0] == -1 else shape
    return tuple(abs(size) for size in sizes)


def rounded(value: float) -> float:
    """Return *value* to six digits."""
    return float(f"{value:.6g}")
