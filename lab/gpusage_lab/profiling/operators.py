"""Kernel times of one step by operator, as torch's profiler measures them; runs in the worker alone."""

from __future__ import annotations

from typing import Any

from gpusage.graphs.torch.libraries import import_library
from gpusage_lab.profiling.steps import Step
from gpusage_lab.profiling.timing import wait_for_device

STEPS = 3
MAXIMUM_ROWS = 400
"""Of one workload, the longest first; what is beyond them is launch dust."""


def operator_rows(step: Step, device: str) -> list[dict[str, Any]]:
    """Return one row per operator and its shapes, with the time of the kernels that it launched itself."""
    torch = import_library("torch")
    activity = torch.profiler.ProfilerActivity
    on_gpu = device.startswith("cuda")
    activities = [activity.CPU, activity.CUDA] if on_gpu else [activity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for _ in range(STEPS):
            step()
        wait_for_device(device)
    averages = profile.key_averages(group_by_input_shape=True)
    rows = [
        {
            "operator": event.key,
            "shapes": " ".join(str(size).replace(" ", "") for size in event.input_shapes),
            "kernel": int("CUDA" in str(event.device_type)),
            "count": event.count,
            "device_time_s": getattr(event, "self_device_time_total", 0) / 1e6,
            "host_time_s": event.self_cpu_time_total / 1e6,
            "steps": STEPS,
        }
        for event in averages
    ]
    rows.sort(key=lambda row: (row["device_time_s"], row["host_time_s"]), reverse=True)
    return rows[:MAXIMUM_ROWS]
