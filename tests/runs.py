"""Runs of jobs that several tests share."""

from __future__ import annotations

from dataclasses import replace

from gpusage.experience.runs import Run
from gpusage_hooks.types import JobIdentity

GIB = 2**30
V100 = "v100-sxm2-16gb"
WHO = JobIdentity(user="1000", account="physics", job_name="train", fingerprint="f" * 16, family="resnet")
RUN = Run(
    identity=WHO,
    settings="train,32,fp32,momentum",
    gpu=V100,
    share_percent=100,
    started_at_s=1e9 - 3600,
    ended_at_s=1e9,
    duration_s=3600.0,
    utilization=0.4,
    memory_bytes=4 * GIB,
    predicted_utilization=0.9,
    utilization_high=1.0,
)


def runs(*utilizations: float, user: str = "1000", job_name: str = "train") -> list[Run]:
    """Return runs alone on a whole V100, an hour apart."""
    who = replace(WHO, user=user, job_name=job_name)
    return [
        replace(RUN, identity=who, utilization=utilization, ended_at_s=1e9 + 3600 * hour)
        for hour, utilization in enumerate(utilizations)
    ]


def shared(duration_s: float, percent: int = 50, promised: float = 1.3) -> Run:
    """Return a run on a share of a V100."""
    return replace(RUN, share_percent=percent, duration_s=duration_s, promised_slowdown=promised, utilization=None)
