"""Lucid's measured pairs on three generations of GPUs, as the truth of a replay.

Lucid measured one GPU. Its pairs and utilizations hold on the two others as well, and the speed there is the predicted
speed-up times an error, as large as its interval says. Memory is the prediction with such an error, too: Lucid's is
nvidia-smi's, with all that a framework takes because it is free and gives back under a cap. Gavel measured three GPUs,
but two of them are older than Volta, on which gpusage shares nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from gpusage.decisions.advisor import Advisor
from gpusage.predictors import intervals
from gpusage_hooks.types import SoloRun
from gpusage_lab.learning import pairs
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds import pair_truth
from gpusage_lab.seeds.pair_truth import PairTruth
from gpusage_planning.named_jobs import LUCID, workload
from gpusage_planning.replay.site import MEASURED, SITE_TYPES, KnownRun, ReplayTruth
from gpusage_planning.simulator.truth import draw_value
from gpusage_planning.zoo import load_zoo

FILES = ("lucid_pairs.csv", "lucid_solo.csv")


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
    return ReplayTruth(kinds=here.kinds, pairs=here, runs=runs, speeds=speeds, memory=memory)


def _known_runs(data: DataFolder, here: PairTruth) -> Iterator[KnownRun]:
    for (model, batch, half), utilization in zip(pairs.lucid(data).jobs, here.utilization.tolist(), strict=True):
        job = LUCID[model]
        known = SoloRun(utilization=round(utilization, 2))
        run = replace(workload(job, batch, half=half), alone=known)
        yield KnownRun(key=job.key, graph=load_zoo().graph(job.key), run=run)
