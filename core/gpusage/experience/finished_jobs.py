"""Conclusions from a job's usage after its end, by fixed rules; missing data is never waste."""

from __future__ import annotations

from gpusage.predictors.known import is_same_batch_size
from gpusage_hooks.types import DecisionRecord, Outcome, Usage
from gpusage_hooks.units import KIB, MIB, WHOLE_PERCENT, gib, percent

LEAST_SAMPLED_S = 60.0
"""Of sampling: less shows nothing of a job."""
HOST_BOUND_BELOW = 0.5
"""A GPU that has no kernel for more than half of the time waits for its host."""
BUSY_PROCESSORS = 0.85
LEAST_ALONE = 0.9
"""Of the sampled time: NVML's utilization is the whole device's, so it is a job's own only where it is alone."""
SOUND: tuple[Outcome, ...] = ("completed", "timed_out")
"""A training that its time limit ends has run as it always does."""
LEAST_UTILIZATION = 0.02
"""Of a job that works at all."""
UNUSED_BELOW = 0.005
"""Below this, people read 0 %."""
IDLE_PROCESSORS, IDLE_READ_BYTES_PER_S = 0.02, 10.0 * KIB
"""What a shell or a notebook that waits for its user takes of its host."""
FASTER = 2.0
"""A round figure for one generation of GPUs."""
CLOCK_DIFFERENCE_S = 2.0
"""A manager counts whole seconds; a sampler is started a little earlier or later, by the clock of its own node."""
FILLED = 0.95
"""Of a cap on GPU memory: an allocation fails before the last byte is taken."""
EXCEEDED = 1.05
"""Of a cap: the driver's own memory for a process counts in what NVML shows, and not in what MPS limits."""


def own_utilization(usage: Usage, least_s: float = LEAST_SAMPLED_S) -> float | None:
    """Return the share of time in which a kernel of the job ran, 0 to 1; ``None`` where that is not known.

    Args:
        usage: Of one run.
        least_s: What was sampled for less shows nothing.
    """
    if usage.gpu_utilization is None or usage.sampled_s < least_s or was_gpu_shared(usage):
        return None
    return min(max(usage.gpu_utilization, 0.0), 1.0)


def has_own_figures(usage: Usage) -> bool:
    """Return whether a manager's accounting, without a node's samples, has the job's own memory and utilization."""
    return not usage.sampled_s and usage.memory_bytes is not None and usage.peak_utilization is not None


def was_gpu_shared(usage: Usage) -> bool:
    """Return whether others were on the GPU for so long that nobody knows whose kernels ran."""
    return usage.alone_s < LEAST_ALONE * usage.sampled_s


def filled_memory_cap(usage: Usage) -> bool:
    """Return whether the processes of a run held as much GPU memory, by the driver's account, as its cap allows.

    Of a run that completed this shows nothing: an allocator that keeps what it frees holds all that it may have.
    """
    limit_bytes = usage.granted.memory_limit_bytes
    return limit_bytes is not None and (usage.memory_bytes or 0) >= FILLED * limit_bytes


def describe_excess(usage: Usage) -> str:
    """Return by how much a run's processes took more memory in sum than its part, one clause; empty if they did not.

    A cap of MPS holds each process alone.
    """
    limit_bytes, taken_bytes = usage.granted.memory_limit_bytes, usage.memory_bytes or 0
    if limit_bytes is None or taken_bytes <= EXCEEDED * limit_bytes:
        return ""
    return (
        f"its processes together took {gib(taken_bytes)}, more than its part of the GPU's memory ({gib(limit_bytes)})"
    )


def describe_waiting(usage: Usage, least_s: float = LEAST_SAMPLED_S) -> str:
    """Return the reason why the GPU waited, and the gain of a faster GPU; empty if it did not wait.

    A GPU that is `FASTER` times as fast shortens only the time with kernels: of the whole run at most utilization times
    ``1 - 1 / FASTER``.
    """
    utilization = usage.gpu_utilization if usage.sampled_s >= least_s else None
    if utilization is None or not UNUSED_BELOW <= utilization < HOST_BOUND_BELOW:
        return ""
    gain = percent(utilization * (1 - 1 / FASTER))
    return f"waits for {describe_host(usage)}; a GPU {FASTER:.0f} times as fast would save at most {gain} of its time"


def suggest_next_request(usage: Usage, record: DecisionRecord | None, least_s: float = LEAST_SAMPLED_S) -> str:
    """Return a better request for the next time, one clause; empty where too little was seen.

    Args:
        usage: Of a job that has ended.
        record: Of its decision, where that is known.
        least_s: What was sampled for less shows nothing.
    """
    utilization = usage.gpu_utilization if usage.sampled_s >= least_s else None

    # Whatever else was seen, its share had too little memory.
    if usage.outcome == "out_of_memory":
        return "a whole GPU"
    if utilization is None:
        return ""
    if utilization < UNUSED_BELOW:
        return "no GPU: it hardly used one"

    requests = ["more processors"] if lacks_processors(usage, least_s) else []
    if record is None or record.model is None:
        requests.append("a line that names its model")
    elif key := utilization_key(usage, record, least_s):
        requests.append(f"{key} in the comment")
    return " and ".join(requests) or "the same"


def utilization_key(usage: Usage, record: DecisionRecord, least_s: float = LEAST_SAMPLED_S) -> str:
    """Return the key that passes a run's utilization on to gpusage, ``utilization=20@64``; empty where none helps."""
    utilization = own_utilization(usage, least_s)
    run = record.workload
    # On a share a job is busier than alone on the GPU, so its figure would mislead.
    granted = usage.granted
    is_whole = granted.thread_percent is None and (granted.division, granted.share_percent) == ("whole", WHOLE_PERCENT)
    is_known = run is not None and run.alone.utilization is not None and is_same_batch_size(run)
    if utilization is None or is_known or not is_whole:
        return ""

    batch = f"@{run.batch_size}" if run else ""
    return f"utilization={max(1, round(100 * utilization))}{batch}"


def lacks_processors(usage: Usage, least_s: float = LEAST_SAMPLED_S) -> bool:
    """Return whether the job waits for its processors, which are busy."""
    return processor_utilization(usage) >= BUSY_PROCESSORS and bool(describe_waiting(usage, least_s))


def describe_host(usage: Usage) -> str:
    """Return the part of its host that a job waits for: its processors, where these are busy, else its loader."""
    busy, elapsed_s = processor_utilization(usage), usage.ended_at_s - usage.started_at_s

    # Idle processors leave the disk, the network, or a loader with too few workers.
    if busy >= BUSY_PROCESSORS:
        return f"its processors, which are {percent(busy)} busy"
    known = [f"its processors are {percent(busy)} busy"] if usage.cpu_s is not None and usage.cpus else []
    if usage.read_bytes is not None and elapsed_s > 0:
        known.append(f"it reads {usage.read_bytes / MIB / elapsed_s:.0f} MiB/s")
    return "its loader" + (f" ({', '.join(known)})" if known else "")


def processor_utilization(usage: Usage) -> float:
    """Return how busy the job's processors were, 0 where that is unknown."""
    elapsed_s = usage.ended_at_s - usage.started_at_s
    return (usage.cpu_s or 0.0) / (usage.cpus * elapsed_s) if usage.cpus and elapsed_s > 0 else 0.0


def is_same_run(one: Usage, other: Usage) -> bool:
    """Return whether both are of one run, where both are of one job: its next run starts after the last has ended."""
    return max(one.started_at_s, other.started_at_s) < min(one.ended_at_s, other.ended_at_s) + CLOCK_DIFFERENCE_S


def is_of_another_node(one: Usage, other: Usage) -> bool:
    """Return whether these were sampled on two nodes, or in two containers, each with GPUs of its own."""
    return bool(one.sampled_on and other.sampled_on) and one.sampled_on != other.sampled_on
