"""The cluster of a replay: its emulated GPUs, and its workload manager's own times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpusage_planning.replay.truth import MEASURED, SITE_TYPES
from gpusage_planning.simulator.passes import Scheduling

NEVER_S = 1e7
"""Longer than any replay: the limit of jobs of which the manager knows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A workload manager's own times, in seconds of the real clock.

    Attributes:
        poll_interval_s: Between two readings of the whole queue.
        start_s: By state, what a start takes while the job has its GPU already.
        requeue_s: From the end of a job that ran out of memory until it is in the queue again.
        limit_s: The time limit of jobs whose users named none.
        first_s: From the release to the first job that is in the queue.
        next_s: From one job that is in the queue to the next: on YARN, each job's master must run first.
        prefers: Whether each job's generation is chosen among the recent jobs.
    """

    poll_interval_s: float
    start_s: Mapping[str, float]
    requeue_s: float
    limit_s: float
    first_s: float
    next_s: float
    prefers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A cluster of nodes that are alike but for their GPUs' type.

    Attributes:
        types: In the order in which the manager fills nodes.
    """

    types: tuple[str, ...]
    nodes_per_type: int
    gpus_per_node: int
    timing: Timing

    @property
    def nodes(self) -> str:
        """Return the nodes as a sandbox is asked for them."""
        return ",".join(f"{self.nodes_per_type}x{name}:{self.gpus_per_node}" for name in self.types)

    @property
    def gpus(self) -> list[tuple[str, int]]:
        """Return node and device of each GPU, in the simulator's order."""
        return [
            (f"{name}-{number}", device)
            for name in self.types
            for number in range(1, self.nodes_per_type + 1)
            for device in range(self.gpus_per_node)
        ]

    def scheduling(self, state: str, compression: float) -> Scheduling:
        """Return the manager's times on the clock of the emulated cluster."""
        return Scheduling(
            backfill_s=self.timing.poll_interval_s * compression,
            start_s=self.timing.start_s[state] * compression,
            requeue_s=self.timing.requeue_s * compression,
            gpus_per_node=self.gpus_per_node,
        )


SLURM = Site(
    types=SITE_TYPES,
    nodes_per_type=1,
    gpus_per_node=4,
    timing=Timing(
        poll_interval_s=1.0,
        start_s={"off": 0.6, "on": 1.2},
        requeue_s=2.5,
        limit_s=3600.0,
        first_s=0.0,
        next_s=0.0,
        prefers=True,
    ),
)
"""The sandbox's slurm.conf has looks and limit; starts and requeues were measured with seeds 0 to 2."""
YARN = Site(
    types=(MEASURED,),
    nodes_per_type=3,
    gpus_per_node=2,
    timing=Timing(
        poll_interval_s=0.2,
        start_s={"off": 0.7, "on": 0.7},
        requeue_s=0.8,
        limit_s=NEVER_S,
        first_s=8.0,
        next_s=0.6,
        prefers=False,
    ),
)
"""The sandbox's heartbeats are the looks; a node is held for the first job without room there, as in Slurm. The other
times were measured with eight jobs of seed 0."""
