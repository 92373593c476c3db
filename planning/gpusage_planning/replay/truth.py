"""What happens to emulated jobs: Lucid's measured pairs, on three generations of GPUs.

Lucid measured one GPU. Its pairs and utilizations hold on the two others as well, and the speed there is the predicted
speed-up times an error, as large as its interval says. Memory is the prediction with such an error, too: Lucid's is
nvidia-smi's, with all that a framework takes because it is free and gives back under a cap. Gavel measured three GPUs,
but two of them are older than Volta, on which gpusage shares nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpusage.decisions.advisor import Advisor
from gpusage.predictors import intervals
from gpusage_hooks.types import ModelGraph, SoloRun, Workload
from gpusage_lab.learning import pairs
from gpusage_lab.learning.named_jobs import LUCID, workload
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.simulator import pair_truth
from gpusage_lab.simulator.contract import Colocation, Tenant
from gpusage_lab.simulator.jobs import FloatArray, Kind
from gpusage_lab.simulator.pair_truth import PairTruth
from gpusage_lab.simulator.predicted_truth import draw_value
from gpusage_lab.zoo.cards import load_zoo

MEASURED = "rtx_3090"
SITE_TYPES = ("h100", MEASURED, "v100_32gb")
"""A newer GPU, the measured one and an older one, in the order in which Slurm fills nodes: by name."""
FILES = ("lucid_pairs.csv", "lucid_solo.csv")


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
        pairs: What happens on one GPU.
        runs: Of each kind.
        speeds: A row per kind, a column per type: work in a second, alone; 1 on the measured type.
        memory: What each kind needs, in bytes.
    """

    pairs: PairTruth
    runs: tuple[KnownRun, ...]
    speeds: FloatArray
    memory: FloatArray

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of jobs."""
        return self.pairs.kinds

    def speed(self, kind: int, gpu_type: int, /) -> float:
        """Return the work per second alone on the whole GPU."""
        return float(self.speeds[kind, gpu_type])

    def memory_bytes(self, kind: int, _: int, /) -> float:
        """Return the memory that the job really needs."""
        return float(self.memory[kind])

    def colocation_of(self, tenants: Sequence[Tenant], gpu_type: int, /) -> Colocation:
        """Return what comes of *tenants*: the pairs. No table shows what a limit on threads does."""
        return self.pairs.colocation_of(tenants, gpu_type)


def lucid(data: DataFolder, advisor: Advisor, seed: int, site_types: Sequence[str] = SITE_TYPES) -> ReplayTruth:
    """Return Lucid's jobs on GPU types, of which one is the measured one; *seed* draws how far predictions miss."""
    here = pair_truth.lucid(data, seed)
    gpus = [advisor.catalogue.find(name) for name in site_types]
    runs = tuple(_known_runs(data, here))
    deviates = np.random.default_rng([seed, 2]).standard_normal((len(runs), 2))
    place = site_types.index(MEASURED)
    speeds, memory = np.ones((len(runs), len(gpus))), np.ones(len(runs))
    for number, (known, (of_speed, of_memory)) in enumerate(zip(runs, deviates.tolist(), strict=True)):
        needs = advisor.predict(known.graph, known.run, gpus)
        ratios = [intervals.speedup(need, needs[place]) for need in needs]
        speeds[number] = [draw_value(ratio, of_speed) for ratio in ratios]
        speeds[number, place] = 1.0
        memory[number] = draw_value(needs[place].memory_bytes, of_memory)
    return ReplayTruth(pairs=here, runs=runs, speeds=speeds, memory=memory)


def _known_runs(data: DataFolder, here: PairTruth) -> Iterator[KnownRun]:
    for (model, batch, half), utilization in zip(pairs.lucid(data).jobs, here.utilization.tolist(), strict=True):
        job = LUCID[model]
        known = SoloRun(utilization=round(utilization, 2))
        run = replace(workload(job, batch, half=half), alone=known)
        yield KnownRun(key=job.key, graph=load_zoo().graph(job.key), run=run)
