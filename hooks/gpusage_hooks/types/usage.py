"""What a job really did on a GPU, as its node observed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Outcome = Literal["completed", "failed", "out_of_memory", "interrupted", "cancelled", "timed_out", "unknown"]
"""``failed`` is the program's own failure; ``interrupted`` one that a signal, the node, the host's memory or a command
that is not there made."""
Division = Literal["percentage", "partition", "slice", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The part of a GPU that a job really had, as a probe on the node read it back.

    Attributes:
        division: What holds the job to its part; ``whole`` where nothing does.
        share_percent: The part that the workload manager booked; 100 for a whole GPU.
        thread_percent: The percentage of the SMs that the job may use; ``None`` where nothing limits it.
        memory_limit_bytes: The cap on device memory; ``None`` where there is none.
        trouble: Why it is not what was asked for, one clause; empty where it is.
    """

    division: Division = "whole"
    share_percent: int = 100
    thread_percent: int | None = None
    memory_limit_bytes: int | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one job really did on its GPUs. ``None`` means that it was not observed, never that it was none.

    Attributes:
        number: Of the decision that the job carries in its annotation; empty where it carries none.
        manager: The workload manager's name, as in `Manager`.
        job_id: In the manager's own form.
        user: By name.
        user_id: What the manager's submissions call the same user, maybe a number; ``None`` if unknown, as
            in what older releases kept.
        account: The account or queue that pays; empty if unknown.
        partition: Where it ran, by the manager's own name; empty if unknown.
        gpu: The catalogue's name, or the device's own words where the catalogue does not know it.
        gpu_count: How many GPUs it had: on the node that sampled it, or of all nodes where the accounting has it; the
            mean over its time where that changed.
        sampled_on: The node that sampled it, or the container that was sampled; empty where none was.
        started_at_s: When the job started, seconds since 1970.
        ended_at_s: When it ended.
        sampled_s: How long the device was looked at.
        alone_s: How long of that no other job was on the GPU.
        gpu_utilization: NVML's, mean over the sampled time: the share of time with any kernel running, 0 to 1.
        peak_utilization: The same over the busiest minute.
        sm_activity: Mean share of busy SMs, 0 to 1.
        dram_activity: Mean share of the memory bandwidth, 0 to 1.
        memory_bytes: Peak of the job's own processes.
        energy_j: Of the whole GPU while the job ran.
        cpu_s: Processor time of the job.
        cpus: Processors that it was given.
        read_bytes: What it read from storage.
    """

    number: str
    manager: str
    job_id: str
    user: str
    user_id: str | None = None
    account: str = ""
    partition: str = ""
    job_name: str = ""
    gpu: str = ""
    gpu_count: float | None = None
    granted: Allocation = Allocation()
    outcome: Outcome = "unknown"
    sampled_on: str = ""
    started_at_s: float
    ended_at_s: float
    sampled_s: float = 0.0
    alone_s: float = 0.0
    gpu_utilization: float | None = None
    peak_utilization: float | None = None
    sm_activity: float | None = None
    dram_activity: float | None = None
    memory_bytes: int | None = None
    energy_j: float | None = None
    cpu_s: float | None = None
    cpus: int | None = None
    read_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What the counters of one GPU say at one moment. ``None`` means that the GPU has no such counter.

    Attributes:
        name: In the vendor's own words.
        gpu_utilization: The share of time with any kernel running, since the last reading or over a moment, 0 to 1.
        sm_activity: Mean share of busy SMs since the last reading, 0 to 1.
        dram_activity: Mean share of the memory bandwidth since the last reading, 0 to 1.
        energy_j: A counter that only grows; where it begins does not matter.
        process_memory_bytes: What each process on the GPU holds, by its number on this machine; ``None`` where the
            driver does not report it.
    """

    name: str
    gpu_utilization: float | None = None
    sm_activity: float | None = None
    dram_activity: float | None = None
    energy_j: float | None = None
    process_memory_bytes: Mapping[int, int | None] = field(default_factory=lambda: MappingProxyType({}))
