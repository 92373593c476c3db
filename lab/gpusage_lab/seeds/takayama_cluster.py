"""Takayama et al.'s assignment of jobs to generations, scored by the share of the attainable gain over chance.

Their 8.24 % follows from none of four readings of their table, so the assumptions are ours and stated: one old and one
new GPU, both always busy, all nine jobs equally often, a kind of job may be divided. "Evenly" is half of each kind on
either GPU, the time divided evenly. The score: of what a perfect order saves beyond chance, how much does a ranking?
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds import takayama_online
from gpusage_lab.seeds.takayama import PAPER_REDUCTION, FloatArray, makespan, measured, predicted, slowed_by_host
from gpusage_planning.named_jobs import JOBS

FILES: tuple[str, ...] = ()
SHUFFLES = 20_000
ASSUMPTIONS = (
    "One P100 and one V100, both always busy; the nine jobs equally often; a kind may be divided between the two.",
    "The V100 takes from the front of the ranking, the P100 from its end. Evenly: half of each kind on either GPU.",
    "The paper's 8.24 % cannot be had here: a perfect order saves less. Its row of 4509 h may be a misprint of 4059.",
)


class Ranking(NamedTuple):
    """One way to rank the jobs: what it saves against an even assignment in percent, and its score in percent."""

    name: str
    saved: float
    score: float


def rankings() -> tuple[float, FloatArray, list[Ranking]]:
    """Return what a perfect order saves, what each random order saves, and each ranking; all in percent."""
    old, new = measured()
    even = float(old.sum() + new.sum()) / 4.0

    def saved(order: FloatArray) -> float:
        return 100.0 * (1.0 - makespan(old, new, np.argsort(order, kind="stable")) / even)

    generator = np.random.default_rng(0)
    at_random = np.array([saved(generator.permutation(len(JOBS)).astype(np.float64)) for _ in range(SHUFFLES)])
    perfect, chance = saved(new / old), float(at_random.mean())
    ways = {name: saved(order) for name, order in _orders().items()}
    scored = [Ranking(name, value, 100.0 * (value - chance) / (perfect - chance)) for name, value in ways.items()]
    return perfect, at_random, scored


def _orders() -> dict[str, FloatArray]:
    """Return the key by which each way sorts, the least first on the new GPU."""
    predictions = predicted()
    observed = np.array([job.utilization for job in JOBS])
    return {
        "predicted ratio": predictions.ratio,
        "predicted ratio with predicted utilization": slowed_by_host(predictions.ratio, predictions.utilization),
        "predicted utilization": -predictions.utilization,
        "predicted ratio with observed utilization": slowed_by_host(predictions.ratio, observed / 100.0),
        "observed utilization": -observed,
    }


def tables(_: DataFolder | None = None) -> list[ScoreTable]:
    """Return who gets the new GPUs among jobs that are there at once, and as jobs come."""
    perfect, at_random, ways = rankings()
    chance, apart = float(at_random.mean()), 100.0 * float(at_random.std()) / (perfect - float(at_random.mean()))
    at_once = ScoreTable(
        title="Takayama: who gets the V100, scored by the share of the attainable gain over chance",
        columns=("ranked by", "less than evenly, %", "of the attainable, %"),
        rows=(
            ("chance", chance, 0.0),
            *((way.name, way.saved, way.score) for way in ways),
            ("measured gain (a perfect order)", perfect, 100.0),
            ("the paper, as printed", PAPER_REDUCTION, None),
        ),
        notes=(*ASSUMPTIONS, f"No goal: of nine jobs a random order scores {apart:.0f} points off 0, one deviation."),
    )
    return [at_once, takayama_online.table()]
