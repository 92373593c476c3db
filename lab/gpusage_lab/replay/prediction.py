"""What the simulator predicts of the same jobs on the same GPUs: slots, and gpusage's own decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpusage.advisor import Advisor
from gpusage_hooks.types import Cluster, GpuPool, SharingRule
from gpusage_lab.replay.truth import SITE_TYPES, ReplayTruth
from gpusage_lab.simulator.contract import Ask, Policy
from gpusage_lab.simulator.engine import simulate
from gpusage_lab.simulator.fleet import Fleet, fleet_of
from gpusage_lab.simulator.jobs import Jobs
from gpusage_lab.simulator.models import Models
from gpusage_lab.simulator.passes import Scheduling
from gpusage_lab.simulator.policies import Slots
from gpusage_lab.simulator.production import Production, production
from gpusage_lab.simulator.result import Result

GPUS_PER_TYPE = 4
UNITS = 100
RULE: SharingRule = "utilization"
"""Jobs share a GPU where their known utilizations add up to 100 % at most: Lucid's tables are of such pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A workload manager's own times, in seconds of the real clock.

    Attributes:
        looks_s: From one look at the whole queue to the next.
        start_s: By state, what a start takes while the job has its GPU already: epilog, launch and prolog.
        requeue_s: From the end of a job that ran out of memory until it is in the queue again.
        limit_s: The time limit of jobs whose users named none.
        prefers: Whether each job's generation is chosen among the jobs of late.
    """

    looks_s: float
    start_s: Mapping[str, float]
    requeue_s: float
    limit_s: float
    prefers: bool

    def scheduling(self, state: str, compression: float) -> Scheduling:
        """Return it on the clock of the emulated cluster, where nodes have as many GPUs as types."""
        return Scheduling(
            backfill_s=self.looks_s * compression,
            start_s=self.start_s[state] * compression,
            requeue_s=self.requeue_s * compression,
            gpus_per_node=GPUS_PER_TYPE,
        )


SLURM = Timing(looks_s=1.0, start_s={"off": 0.6, "on": 1.2}, requeue_s=2.5, limit_s=3600.0, prefers=True)
"""The sandbox's slurm.conf has the first and the limit; starts and requeues were measured with seeds 0 to 2."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictor:
    """Simulates one repetition.

    Attributes:
        compression: Seconds of the emulated cluster in one of the real clock.
    """

    truth: ReplayTruth
    fleet: Fleet
    advisor: Advisor
    timing: Timing
    compression: float

    def predicted(self, jobs: Jobs, *, at_once: bool = False) -> Mapping[str, Result]:
        """Return what becomes of *jobs* without gpusage and with it.

        Args:
            jobs: All of this repetition.
            at_once: Whether each job starts in the moment in which there is room, and by nothing but that.
        """
        policies: Mapping[str, Policy] = {"off": Slots(fleet=self.fleet, backfill="any"), "on": self.production()}
        limited = replace(jobs, limit_s=np.full(len(jobs), self.timing.limit_s * self.compression))
        return {
            state: simulate(
                limited,
                self.fleet,
                policy,
                self.truth,
                scheduling=None if at_once else self.timing.scheduling(state, self.compression),
            )
            for state, policy in policies.items()
        }

    def production(self) -> Production:
        """Return gpusage's own decisions on the empty cluster."""
        runs = [*enumerate(self.truth.runs)]
        gpus = [one.gpu for one in self.fleet.types if one.gpu is not None]
        needs = {
            (number, place): need
            for number, known in runs
            for place, need in enumerate(self.advisor.predict(known.graph, known.run, gpus))
        }
        graphs = {number: known.graph for number, known in runs}
        workloads = {number: known.run for number, known in runs}
        models = Models(graphs=graphs, workloads=workloads, needs=needs, prices={})
        usual = production(RULE, self.fleet, self.truth.kinds, models, self.advisor)
        return replace(usual, backfill="any", online=self.timing.prefers)

    def shares(self, jobs: Jobs) -> list[int]:
        """Return the percentage of a GPU that each job is given."""
        policy = self.production()
        return [policy.demand(Ask(kind)).share_percent for kind in jobs.kind.tolist()]


def fleet(advisor: Advisor) -> Fleet:
    """Return the cluster as gpusaged sees it while it is empty: one node per type."""
    pools = tuple(
        GpuPool(
            gpu=advisor.catalogue.find(name).name,
            site_type=name,
            gpu_count=GPUS_PER_TYPE,
            free_gpu_count=GPUS_PER_TYPE,
            mps_per_gpu=UNITS,
            feature=name,
            exact_feature=name,
        )
        for name in SITE_TYPES
    )
    return fleet_of(Cluster(manager="simulated", version="", pools=pools), advisor.catalogue)
