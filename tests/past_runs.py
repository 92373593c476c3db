"""Runs of jobs that name no model, which several tests share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpusage.experience.runs import Run
from gpusage_hooks.types import JobIdentity

GIB = 2**30
V100, A100 = "v100-sxm2-16gb", "a100-sxm4-40gb"
ADA = JobIdentity(
    user="1000", account="physics", job_name="train_3", script_digest="1" * 16, request="1 any, 8 cores, 32 GiB"
)
HOUR_S = 3600.0


def past_runs(
    utilizations: Iterable[float], who: JobIdentity = ADA, *, gpu: str = V100, begin_s: float = 1e9
) -> list[Run]:
    """Return runs one after another, each alone on a whole GPU and with 4 GiB, an hour long."""
    return [
        Run(
            identity=who,
            gpu=gpu,
            started_at_s=begin_s + HOUR_S * hour,
            ended_at_s=begin_s + HOUR_S * (hour + 1),
            peak_utilization=utilization,
            memory_bytes=4 * GIB,
        )
        for hour, utilization in enumerate(utilizations)
    ]


def of_user(user: str, **others: str) -> JobIdentity:
    """Return the identity of a job of *user* that is else like Ada's."""
    return replace(ADA, user=user, **others)
