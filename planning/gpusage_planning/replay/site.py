"""The cluster of a replay: its emulated GPUs, its workload manager's own times, and the simulator's prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpusage.decisions.advisor import Advisor
from gpusage_hooks.types import Cluster, GpuPool, ModelGraph, Workload
from gpusage_planning.simulator.contract import Colocation, FloatArray, JobRequest, Jobs, Kind, Policy, Tenant, Truth
from gpusage_planning.simulator.engine import simulate
from gpusage_planning.simulator.fleet import Fleet, fleet_of
from gpusage_planning.simulator.policies import Production, Slots, production
from gpusage_planning.simulator.predictions import Models
from gpusage_planning.simulator.result import Result
from gpusage_planning.simulator.waiting import Scheduling

MEASURED = "rtx_3090"
SITE_TYPES = ("h100", MEASURED, "v100_32gb")
"""A newer GPU, the measured one and an older one, in the order in which Slurm fills nodes: by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRun:
    """A kind of jobs as gpusage sees it.

    Attributes:
        key: Of the model's card in the zoo.
        run: How it is trained, with the utilization that an earlier run alone showed.
    """

    key: str
    graph: ModelGraph
    run: Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayTruth:
    """Speeds and memory of the kinds of jobs on the types of a site.

    Attributes:
        pairs: What happens on one GPU, of the type that was measured.
        runs: Of each kind.
        speeds: A row per kind, a column per type: work in a second, alone; 1 on the measured type.
        memory: What each kind needs, in bytes.
    """

    kinds: tuple[Kind, ...]
    pairs: Truth
    runs: tuple[KnownRun, ...]
    speeds: FloatArray
    memory: FloatArray

    def speed(self, kind: int, gpu_type: int, /) -> float:
        """Return the work per second alone on the whole GPU."""
        return float(self.speeds[kind, gpu_type])

    def memory_bytes(self, kind: int, _: int, /) -> float:
        """Return the memory that the job really needs."""
        return float(self.memory[kind])

    def colocation_of(self, tenants: Sequence[Tenant], gpu_type: int, /) -> Colocation:
        """Return what comes of *tenants*: the pairs. No table shows what a limit on threads does."""
        return self.pairs.colocation_of(tenants, gpu_type)


NEVER_S = 1e7
"""Longer than any replay: the limit of jobs of which the manager knows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A workload manager's own times, in seconds of the real clock.

    Attributes:
        poll_interval_s: Between two readings of the whole queue.
        start_s: What a start takes while the job has its GPU already; ``None`` where the replay itself measures it.
        requeue_s: From the end of a job that ran out of memory until it is in the queue again.
        limit_s: The time limit of jobs whose users named none.
        first_s: From the release to the first job that is in the queue.
        next_s: From one job that is in the queue to the next: on YARN, each job's master must run first.
        prefers: Whether each job's generation is chosen among the recent jobs.
    """

    poll_interval_s: float
    start_s: float | None
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

    def scheduling(self, start_s: float, compression: float) -> Scheduling:
        """Return the manager's times on the emulated cluster's clock; a start takes *start_s* on the real one."""
        return Scheduling(
            backfill_s=self.timing.poll_interval_s * compression,
            start_s=start_s * compression,
            requeue_s=self.timing.requeue_s * compression,
            gpus_per_node=self.gpus_per_node,
        )


SLURM = Site(
    types=SITE_TYPES,
    nodes_per_type=1,
    gpus_per_node=4,
    timing=Timing(
        poll_interval_s=1.0,
        start_s=None,
        requeue_s=2.5,
        limit_s=3600.0,
        first_s=0.0,
        next_s=0.0,
        prefers=True,
    ),
)
"""The sandbox's slurm.conf has looks and limit; requeues were measured with seeds 0 to 2."""
YARN = Site(
    types=(MEASURED,),
    nodes_per_type=3,
    gpus_per_node=2,
    timing=Timing(
        poll_interval_s=0.2,
        start_s=0.7,
        requeue_s=0.8,
        limit_s=NEVER_S,
        first_s=8.0,
        next_s=0.6,
        prefers=False,
    ),
)
"""The sandbox's heartbeats are the looks; a node is held for the first job without room there, as in Slurm. The other
times were measured with eight jobs of seed 0."""


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

    def predicted(self, jobs: Jobs, start_s: Mapping[str, float] | None = None) -> Mapping[str, Result]:
        """Return the outcomes of *jobs* without gpusage and with it.

        Args:
            jobs: All of this repetition.
            start_s: By state, what a start takes in seconds of the real clock; ``None`` where each job starts in the
                moment in which there is room, and by nothing but that.
        """
        policies: Mapping[str, Policy] = {"off": Slots(fleet=self.fleet, backfill="any"), "on": self.production()}
        timing, count = self.site.timing, len(jobs)
        ready_s = timing.first_s + timing.next_s * np.arange(count, dtype=np.float64)
        limit_s = np.full(count, timing.limit_s * self.compression)
        jobs = replace(jobs, limit_s=limit_s, submit_s=ready_s * self.compression * (start_s is not None))

        return {
            state: simulate(
                jobs,
                self.fleet,
                policy,
                self.truth,
                scheduling=None if start_s is None else self.site.scheduling(start_s[state], self.compression),
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
