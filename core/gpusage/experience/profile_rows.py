"""Jobs that ran alone on a whole GPU as rows of a table of `gpusage profile`, for the training of predictors.

Invariants:

1. A job that waited for its host shows its memory alone: how busy it was is its host's, not its model's.
2. A step time is there only where the user gave the number of steps, and the job did them all.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpusage.experience.identity import unusual_settings
from gpusage_hooks.types import DecisionRecord, Usage
from gpusage_hooks.units import WHOLE_PERCENT

COLUMNS = (
    *("item", "kind", "side", "sides", "status", "detail", "measured_at", "seconds"),
    *("model", "batch_size", "mode", "precision", "optimizer", "shape", "stall_ratio", "partners"),
    *("sharing", "thread_percent"),
    *("steps", "step_time_s", "step_time_p10_s", "step_time_p90_s", "steps_per_s", "samples_per_s"),
    *("allocated_bytes", "reserved_bytes", "process_bytes", "used_bytes", "parameter_count", "prepare_s"),
    *("gpu_utilization", "sm_activity", "dram_activity", "power_w", "samples"),
    *("device", "gpu", "driver", "cuda", "cudnn", "torch", "libraries", "python", "gpusage"),
)
GPU_BOUND = 0.95
"""Utilization from which on the GPU decides the step."""
Cell = str | int | float


def profile_row(usage: Usage, record: DecisionRecord, least_sampled_s: float) -> Mapping[str, Cell] | None:
    """Return the row of one run, without unknown cells; ``None`` where it was not alone on a whole GPU.

    Args:
        usage: Of the run.
        record: Of its decision.
        least_sampled_s: With less, means are mostly start-up.
    """
    workload = record.workload
    alone = usage.granted.share_percent == WHOLE_PERCENT and 0 < usage.sampled_s == usage.alone_s
    sound = usage.outcome == "completed" and usage.sampled_s >= least_sampled_s
    if record.model is None or workload is None or not (alone and sound and not unusual_settings(workload)):
        return None

    run = f"batch={workload.batch_size},mode={workload.mode},precision={workload.precision}"
    row: dict[str, Cell | None] = {
        "item": f"solo:{record.model},{run}",
        "kind": "solo",
        "side": 0,
        "sides": 1,
        "status": "ok",
        "model": record.model,
        "batch_size": workload.batch_size,
        "mode": workload.mode,
        "precision": workload.precision,
        "optimizer": workload.optimizer if workload.mode == "train" else None,
        "shape": ";".join(f"{name}={'x'.join(map(str, sizes))}" for name, sizes in workload.shape),
        "sharing": "none",
        "device": "cuda",
        "seconds": usage.sampled_s,
        "gpu": usage.gpu,
        "process_bytes": usage.memory_bytes,
    }

    # Below that, the host has decided how busy the GPU was, and how long the run took.
    if (usage.gpu_utilization or 0.0) >= GPU_BOUND and usage.granted.division != "slice":
        duration_s = usage.ended_at_s - usage.started_at_s
        row["step_time_s"] = duration_s / workload.steps if workload.steps else None
        row["gpu_utilization"] = usage.gpu_utilization
        row["sm_activity"], row["dram_activity"] = usage.sm_activity, usage.dram_activity
        row["power_w"] = usage.energy_j / duration_s if usage.energy_j else None
    return {name: value for name, value in row.items() if value is not None}
