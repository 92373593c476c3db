"""A decision's record, and the usage of a job, that several tests share."""

from __future__ import annotations

import getpass
import time

from gpusage.store.annotation import JobAnnotation, annotation_of_decision
from gpusage_hooks.types import (
    Allocation,
    Code,
    Decision,
    DecisionRecord,
    GpuNeed,
    GpuRequest,
    Interval,
    RenderedDecision,
    Slo,
    Usage,
    Workload,
)

INTERVAL = Interval(value=0.5, low=0.25, high=0.75)
NEED = GpuNeed(
    gpu="v100-sxm2-16gb",
    step_time_s=INTERVAL,
    memory_bytes=INTERVAL,
    gpu_utilization=INTERVAL,
    sm_activity=INTERVAL,
    dram_activity=INTERVAL,
    throughput_samples_per_s=INTERVAL,
    fits=True,
    notes=("a note",),
)
RECORD = DecisionRecord(
    decided_at_s=1_700_000_000.5,
    manager="slurm",
    origin="uid 1000",
    mode="enforce",
    decision=Decision(
        code=Code.REWRITE,
        request=GpuRequest(gpu_count=1, mps_thread_percent=40, preferred_gpus=("v100",)),
        reasons=("one reason", "another"),
        plugin="gpusage.policies.sharing",
        need=NEED,
    ),
    rendered=RenderedDecision(before="gres/gpu:1", after="gres/mps:40", fields={"set.gres": "mps:40"}),
    model="resnet50.onnx",
    workload=Workload(batch_size=64, shape=(("seq", (128,)),), mode="infer", slo=Slo(latency_s=0.05)),
)
USAGE = Usage(
    number="69215f4a0c3e",
    manager="slurm",
    job_id="7",
    user="ada",
    job_name="train",
    gpu="v100-sxm2-16gb",
    granted=Allocation(division="percentage", share_percent=40, thread_percent=40, memory_limit_bytes=6 * 2**30),
    outcome="completed",
    started_at_s=1_700_000_100.0,
    ended_at_s=1_700_003_700.0,
    sampled_s=3595.0,
    alone_s=1200.0,
    gpu_utilization=0.31,
    memory_bytes=2 * 10**9,
    energy_j=500_000.0,
    cpu_s=7100.0,
    cpus=2,
    read_bytes=3 * 10**11,
)


def usage_alone(job_id: str, **more: str) -> Usage:
    """Return the usage of a job of this user, which had a whole GPU for itself for the last minute."""
    now_s = time.time()
    return Usage(
        number="",
        job_id=job_id,
        user=getpass.getuser(),
        gpu="v100-sxm2-16gb",
        outcome="completed",
        started_at_s=now_s - 60,
        ended_at_s=now_s,
        sampled_s=60,
        alone_s=60,
        gpu_utilization=0.2,
        memory_bytes=2 * 10**9,
        **more,
    )


def annotation_of_record(record: DecisionRecord) -> JobAnnotation:
    """Return the annotation that the job of *record* carries."""
    return annotation_of_decision(record.decision, record.rendered, record.mode, record.number)
