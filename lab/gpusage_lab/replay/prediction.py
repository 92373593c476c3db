"""What the simulator predicts of the same jobs on the same GPUs: slots, and gpusage's own decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from gpusage.advisor import Advisor
from gpusage_hooks.types import Cluster, GpuPool, SharingRule
from gpusage_lab.replay.truth import SITE_TYPES, ReplayTruth
from gpusage_lab.simulator.engine import simulate
from gpusage_lab.simulator.fleet import Fleet, fleet_of
from gpusage_lab.simulator.jobs import Jobs
from gpusage_lab.simulator.models import Models
from gpusage_lab.simulator.policies import Slots
from gpusage_lab.simulator.production import production
from gpusage_lab.simulator.result import Result

GPUS_PER_TYPE = 4
UNITS = 100
RULE: SharingRule = "utilization"
"""Jobs share a GPU where their known utilizations add up to 100 % at most: Lucid's tables are of such pairs."""

NEVER_LATE: Mapping[str, float] = MappingProxyType({"off": 0.0, "on": 0.0})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictor:
    """Simulates one repetition."""

    truth: ReplayTruth
    fleet: Fleet
    advisor: Advisor

    def predicted(self, jobs: Jobs, late_s: Mapping[str, float] = NEVER_LATE) -> Mapping[str, Result]:
        """Return what becomes of *jobs* without gpusage and with it.

        Args:
            jobs: All of this repetition.
            late_s: For each state, how much longer each job holds its GPU, as the next one starts late.
        """
        graphs = {number: known.graph for number, known in enumerate(self.truth.runs)}
        workloads = {number: known.run for number, known in enumerate(self.truth.runs)}
        models = Models(graphs=graphs, workloads=workloads, needs={}, prices={})
        off = Slots(fleet=self.fleet, backfill="any")
        on = production(RULE, self.fleet, self.truth.kinds, models, self.advisor)
        return {
            state: simulate(replace(jobs, work_s=jobs.work_s + late_s[state]), self.fleet, policy, self.truth)
            for state, policy in (("off", off), ("on", on))
        }


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
