"""What one measurement is: one or several jobs that run at the same time, each with its part of the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gpusage_hooks.types import Workload

Kind = Literal["solo", "share", "pair"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order of a campaign, where the value is the same.

solo        one job, no MPS
share       one job under MPS, at a thread percentage; 100 is what pairs are compared with
pair        two jobs under MPS, default partition
"""
Sharing = Literal["none", "mps", "time-slicing", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledJob:
    """A named model and how it is run.

    Attributes:
        stall_ratio: Idle time before each step, as a part of the step's own time: a slow input pipeline.
    """

    model: str
    workload: Workload
    stall_ratio: float = 0.0

    @property
    def label(self) -> str:
        """The job as users write it in a job's comment."""
        workload = self.workload
        parts = [self.model, f"batch={workload.batch_size}", f"mode={workload.mode}", f"precision={workload.precision}"]
        if workload.mode == "train" and workload.optimizer != Workload().optimizer:
            parts.append(f"optimizer={workload.optimizer}")
        parts += [f"shape={name}={'x'.join(map(str, sizes))}" for name, sizes in workload.shape]
        if self.stall_ratio:
            parts.append(f"stall={self.stall_ratio:g}")
        return ",".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One job of a measurement, and its part of the GPU.

    Attributes:
        percent: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; ``None`` leaves it unset.
    """

    job: ProfiledJob
    percent: int | None = None

    @property
    def label(self) -> str:
        """The side in one word: the job and what is set."""
        return self.job.label if self.percent is None else f"{self.job.label}@percent={self.percent}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One measurement of a campaign.

    Attributes:
        tier: How much its result is worth: 0 is measured first.
        seconds: How long it is measured, warm-up left out.
    """

    kind: Kind
    sides: tuple[Side, ...]
    tier: int = 0
    seconds: float = 2.0

    @property
    def key(self) -> str:
        """What names the item in the table: the same item has the same key in every campaign."""
        return f"{self.kind}:{'|'.join(side.label for side in self.sides)}"

    @property
    def needs_mps(self) -> bool:
        """Whether it says something only under MPS: a thread percentage."""
        return self.kind == "share"
