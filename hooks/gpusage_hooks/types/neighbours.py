"""A job that runs on a share now: whoever gets another share of the same GPU has it for a neighbour."""

from __future__ import annotations

from dataclasses import dataclass

from gpusage_hooks.types.needs import GpuNeed
from gpusage_hooks.types.workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A job on a share of a GPU.

    Attributes:
        nodes: Where it runs, by the manager's own names.
        share_percent: The part of one GPU that it has.
        thread_percent: What it may use of that GPU's threads.
        need: As predicted when its share was decided.
        workload: How it runs its model; what it promises.
    """

    nodes: tuple[str, ...]
    share_percent: int
    thread_percent: int
    need: GpuNeed
    workload: Workload
