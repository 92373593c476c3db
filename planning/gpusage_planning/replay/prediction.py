"""What the simulator predicts of the same jobs on the same GPUs: slots, and gpusage's own decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpusage.decisions.advisor import Advisor
from gpusage_hooks.types import Cluster, GpuPool
from gpusage_planning.replay.site import Site
from gpusage_planning.replay.truth import ReplayTruth
from gpusage_planning.simulator.contract import JobRequest, Policy
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import Fleet, fleet_of
from gpusage_planning.simulator.jobs import Jobs
from gpusage_planning.simulator.models import Models
from gpusage_planning.simulator.policies import Slots
from gpusage_planning.simulator.production import Production, production
from gpusage_planning.simulator.result import Result

UNITS = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictor:
    """Simulates one repetition.

    Attributes:
        compression: Seconds of the emulated cluster in one of the real clock.
    """

    truth: ReplayTruth
    fleet: Fleet
    advisor: Advisor
    site: Site
    compression: float

    def predicted(self, jobs: Jobs, *, at_once: bool = False) -> Mapping[str, Result]:
        """Return the outcomes of *jobs* without gpusage and with it.

        Args:
            jobs: All of this repetition.
            at_once: Whether each job starts in the moment in which there is room, and by nothing but that.
        """
        policies: Mapping[str, Policy] = {"off": Slots(fleet=self.fleet, backfill="any"), "on": self.production()}
        timing, count = self.site.timing, len(jobs)
        ready_s = timing.first_s + timing.next_s * np.arange(count, dtype=np.float64)
        limit_s = np.full(count, timing.limit_s * self.compression)
        jobs = replace(jobs, limit_s=limit_s, submit_s=ready_s * self.compression * (not at_once))
        return {
            state: simulate(
                jobs,
                self.fleet,
                policy,
                self.truth,
                scheduling=None if at_once else self.site.scheduling(state, self.compression),
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
        usual = production(self.fleet, self.truth.kinds, models, self.advisor)
        return replace(usual, backfill="any", online=self.site.timing.prefers)

    def shares(self, jobs: Jobs) -> list[int]:
        """Return the percentage of a GPU that each job is given."""
        policy = self.production()
        return [policy.demand(JobRequest(kind)).share_percent for kind in jobs.kind.tolist()]


def fleet(advisor: Advisor, site: Site) -> Fleet:
    """Return the cluster as gpusaged sees it while it is empty."""
    count = site.nodes_per_type * site.gpus_per_node
    pools = tuple(
        GpuPool(
            gpu=advisor.catalogue.find(name).name,
            site_type=name,
            gpu_count=count,
            free_gpu_count=count,
            mps_per_gpu=UNITS,
            feature=name,
            exact_feature=name,
        )
        for name in site.types
    )
    return fleet_of(Cluster(manager="simulated", version="", pools=pools), advisor.catalogue)
