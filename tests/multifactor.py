"""Three small queues in which Slurm's multifactor priority and backfill decide who starts next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpusage_hooks.types import Cluster
from gpusage_planning.simulator.contract import Jobs, Kind, UnslowedTruth
from gpusage_planning.simulator.fleet import Fleet, GpuType
from gpusage_planning.simulator.orders import Multifactor, Ordering
from gpusage_planning.simulator.policies import Slots
from gpusage_planning.simulator.result import Result
from gpusage_planning.simulator.rounds import simulate_ordered

GPUS = 4
"""Of the one node."""


@dataclass(frozen=True, slots=True)
class QueueJob:
    """A job; its name begins with its user's letter."""

    name: str
    gpus: int
    limit_min: int
    submit_s: float
    work_s: float


QUEUES: dict[str, tuple[tuple[QueueJob, ...], str]] = {
    "who had more goes later": (
        (
            QueueJob("a1", 4, 60, 0, 20),
            QueueJob("c1", 4, 60, 30, 20),
            QueueJob("a2", 4, 60, 31, 5),
            QueueJob("b1", 4, 60, 32, 5),
        ),
        "a1 c1 b1 a2",
    ),
    "the larger job goes first": (
        (
            QueueJob("d1", 4, 60, 0, 20),
            QueueJob("e1", 2, 60, 1, 5),
            QueueJob("f1", 3, 60, 2, 7),
            QueueJob("g1", 4, 60, 3, 5),
        ),
        "d1 g1 f1 e1",
    ),
    "who delays nobody overtakes": (
        (
            QueueJob("h1", 2, 60, 0, 40),
            QueueJob("i1", 4, 60, 1, 9),
            QueueJob("j1", 2, 120, 2, 6),
            QueueJob("k1", 2, 15, 3, 20),
            QueueJob("l1", 1, 15, 4, 7),
        ),
        "h1 k1 l1 i1 j1",
    ),
}
"""Jobs in the order of submission, and the order in which they start."""


def simulated(jobs: tuple[QueueJob, ...]) -> Result:
    """Return what the simulator does with *jobs* in the order `multifactor`."""
    fleet = Fleet(
        types=(GpuType(name="v100", gpu_count=GPUS, gpus_per_node=GPUS),),
        cluster=Cluster(manager="none", version="", pools=()),
    )
    users = sorted({job.name[0] for job in jobs})
    trace = Jobs(
        ids=[job.name for job in jobs],
        submit_s=np.array([job.submit_s for job in jobs], dtype=float),
        work_s=np.array([job.work_s for job in jobs], dtype=float),
        limit_s=np.array([60.0 * job.limit_min for job in jobs]),
        gpu_count=np.array([job.gpus for job in jobs], dtype=np.int32),
        kind=np.zeros(len(jobs), dtype=np.int32),
        user=np.array([users.index(job.name[0]) for job in jobs], dtype=np.int32),
        kinds=(Kind(name="job"),),
        users=tuple(users),
    )
    ordering = Ordering(order=Multifactor(), predicted_s=trace.limit_s)
    return simulate_ordered(trace, fleet, Slots(fleet=fleet), UnslowedTruth(), ordering)
