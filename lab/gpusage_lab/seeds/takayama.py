"""Takayama et al.: what nine MLPerf jobs gain from a V100 over a P100, by their graphs, and who gets the V100."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage_hooks.types import Workload
from gpusage_lab.learning.scores import rank_correlation
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.named_jobs import JOBS, NEW, OLD
from gpusage_planning.zoo import load_zoo

FloatArray = npt.NDArray[np.float64]
FILES: tuple[str, ...] = ()
"""None: the graphs are in the zoo, the paper's measured times in `named_jobs`."""
PAPER_REDUCTION = 8.24


class Predicted(NamedTuple):
    """What the graphs say: time on the new GPU over time on the old one, and utilization of the new one, 0 to 1."""

    ratio: FloatArray
    utilization: FloatArray


def tables(_: DataFolder | None = None) -> list[ScoreTable]:
    """Return the experiment's tables."""
    prediction = predicted()
    return [_ratios(prediction), _correlations(prediction)]


def hours(text: str) -> float:
    """Return ``h:min:s`` in hours."""
    whole, minutes, seconds = map(int, text.split(":"))
    return whole + minutes / 60 + seconds / 3600


def measured() -> tuple[FloatArray, FloatArray]:
    """Return the hours of each job on the old and on the new GPU."""
    return np.array([hours(job.old) for job in JOBS]), np.array([hours(job.new) for job in JOBS])


def predicted() -> Predicted:
    """Return what is predicted from the graphs alone."""
    gpus = [builtin_catalogue().find(name) for name in (OLD, NEW)]
    ratios, busy = [], []
    for job in JOBS:
        graph = load_zoo().graph(job.key)
        run = Workload(batch_size=job.batch_size, mode=job.mode, precision="fp32", optimizer=job.optimizer)
        analysis = WorkloadAnalysis(graph, run)
        old_s, new_s = analysis.timing(gpus).step_s.tolist()
        ratios.append(new_s / old_s)
        busy.append(analysis.activity(gpus)[1].gpu_utilization.value)
    return Predicted(np.array(ratios), np.array(busy))


def slowed_by_host(ratio: FloatArray, utilization: FloatArray) -> FloatArray:
    """Return the time ratio of jobs whose GPU, the new one, works only *utilization* of the time (Amdahl).

    The rest of the time, 1 - u, stays; the GPU's part was longer by 1 / ratio on the old one.
    """
    return 1.0 / (1.0 - utilization + utilization / ratio)


def _ratios(prediction: Predicted) -> ScoreTable:
    old, new = measured()
    truth = new / old
    utilization = np.array([job.utilization for job in JOBS]) / 100.0
    known = slowed_by_host(prediction.ratio, utilization)
    alone = slowed_by_host(prediction.ratio, prediction.utilization)
    gpus = [builtin_catalogue().find(name) for name in (OLD, NEW)]
    peaks = np.full(len(JOBS), gpus[0].peak_flop_per_s["fp32"] / gpus[1].peak_flop_per_s["fp32"])
    bandwidth = np.full(len(JOBS), gpus[0].bandwidth_bytes_per_s / gpus[1].bandwidth_bytes_per_s)
    constant = np.array([np.delete(truth, index).mean() for index in range(len(truth))])
    columns = (truth, prediction.ratio, alone, known, constant, peaks, bandwidth)
    rows: list[tuple[str | float | None, ...]] = [
        (f"{job.name}: {job.what}, batch {job.batch_size}", *(float(column[index]) for column in columns), 100 * u)
        for index, (job, u) in enumerate(zip(JOBS, prediction.utilization, strict=True))
    ]
    errors = [100.0 * float(np.mean(np.abs(column - truth) / truth)) for column in columns[1:]]
    rows.append(("mean error, %", None, *errors, None))
    return ScoreTable(
        title="Takayama: time on a V100 over time on a P100, nine MLPerf jobs",
        columns=(
            *("job", "the paper, measured", "ours, GPU alone", "ours, our utilization", "ours, paper's utilization"),
            *("constant (the 8 others)", "peak FLOP/s", "bandwidth", "our utilization %"),
        ),
        rows=tuple(rows),
        notes=(
            "'Our utilization' is ours from the graph alone; 'paper's utilization' needs a run of the job first.",
            "Whole jobs with loader, evaluation and, for RF, the game on the host; the graph knows none of these.",
        ),
    )


def _correlations(prediction: Predicted) -> ScoreTable:
    old, new = measured()
    gain = 1.0 - new / old
    utilization = np.array([job.utilization for job in JOBS])
    pairs = (
        ("the paper's measured utilization", utilization),
        ("our utilization, from the graph", prediction.utilization),
        ("our gain, GPU alone", 1.0 - prediction.ratio),
        ("our gain, with our utilization", 1.0 - slowed_by_host(prediction.ratio, prediction.utilization)),
        ("our gain, with the paper's utilization", 1.0 - slowed_by_host(prediction.ratio, utilization / 100.0)),
    )
    return ScoreTable(
        title="Takayama: what goes with the measured gain (1 - V100 / P100)",
        columns=("figure", "correlation", "rank correlation"),
        rows=tuple(
            (name, float(np.corrcoef(gain, values)[0, 1]), rank_correlation(gain, values)) for name, values in pairs
        ),
        notes=("The paper says in words that jobs of high utilization gain more; with nine jobs 0.67 is 5 % chance.",),
    )


def makespan(old: FloatArray, new: FloatArray, order: Sequence[int] | npt.NDArray[np.int64]) -> float:
    """Return the hours until all work is done where the new GPU takes from the front of *order*, the old from its end.

    There are many jobs of each kind, so that a kind can be divided.
    """
    first, last = np.asarray(new)[order], np.asarray(old)[order]
    done = 0.0
    for index, here in enumerate(first):
        rest = float(last[index + 1 :].sum())
        share = (rest + float(last[index]) - done) / (float(here) + float(last[index]))
        if share <= 1.0:
            return done + max(share, 0.0) * float(here)
        done += float(here)
    return done
