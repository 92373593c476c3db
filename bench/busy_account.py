"""GPU busy as measured jobs show it, against the step's own account: which of them is nearer to real models.

Run: ``python bench/busy_account.py --data ../shared/data``, two minutes. It prints the table of decision 41: RMSLE on
percent for each way of telling the utilization, and for DRAM activity in proportion to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from gpusage.predictors.question import Question
from gpusage_hooks.types import Gpu, ModelGraph, Workload
from gpusage_lab.learning import random_networks
from gpusage_lab.learning.activity_rows import random_cases
from gpusage_lab.learning.activity_tests import real_tests
from gpusage_lab.learning.scores import rmsle
from gpusage_lab.measurements.tables import DataFolder

FloatArray = npt.NDArray[np.float64]
RANDOM_ROWS = 1200
STEP_OF_BATCHES = 4


class Busy(NamedTuple):
    """What one batch is said to keep busy, as shares: utilization, SM activity, DRAM activity."""

    learned: FloatArray
    account: FloatArray

    @property
    def bounded(self) -> FloatArray:
        """Return the learned shares, each at most the account's."""
        return np.minimum(self.learned, self.account)


class Run(NamedTuple):
    """One measured run, in percent, and what is said of it; NaN is what was not measured."""

    source: str
    measured: FloatArray
    here: Busy
    smaller: FloatArray


WAYS: dict[str, Callable[[Run], FloatArray]] = {
    "learned, as shipped": lambda run: run.here.learned,
    "the account's": lambda run: run.here.account,
    "learned, at most the account's": lambda run: run.here.bounded,
    "the same, no less than at smaller batches": lambda run: np.minimum(
        np.maximum(run.here.bounded, run.smaller), run.here.account
    ),
    "DRAM in proportion to the learned utilization": lambda run: np.append(
        run.here.learned[:2], run.here.account[2] * run.here.learned[0] / run.here.account[0]
    ),
}


def busy(graph: ModelGraph, workload: Workload, gpu: Gpu) -> Busy:
    """Return both accounts of *workload*."""
    question = Question(graph, workload)
    timing, activity = question.timing([gpu]), question.activity([gpu])[0]
    intervals = (activity.gpu_utilization, activity.sm_activity, activity.dram_activity)
    account = [part[0] / timing.step_s[0] for part in (timing.busy_s, timing.sm_s, timing.dram_s)]
    return Busy(np.array([interval.value for interval in intervals]), np.array(account))


def run_of(
    source: str,
    graph: ModelGraph,
    workload: Workload,
    gpu: Gpu,
    measured: tuple[float | None, float | None, float | None],
) -> Run:
    """Return one run, with the most that smaller batches of it are said to keep busy."""
    smaller, size = np.zeros(3), 1
    while size < workload.batch_size:
        smaller = np.maximum(smaller, busy(graph, replace(workload, batch_size=size), gpu).bounded)
        size *= STEP_OF_BATCHES
    percents = np.array([np.nan if value is None else value for value in measured])
    return Run(source, percents, busy(graph, workload, gpu), smaller)


def runs_of(data: DataFolder) -> Iterator[Run]:
    """Yield runs of real models, and some of the random networks that the trees were fitted on."""
    for test in real_tests(data):
        measured = (test.utilization, test.sm_activity, test.memory)
        yield run_of(test.source, test.graph, test.workload, test.gpu, measured)
    cases = list(random_cases(random_networks.load(data)))
    for number in np.random.default_rng(0).choice(len(cases), min(RANDOM_ROWS, len(cases)), replace=False):
        case = cases[number]
        yield run_of("random networks", case.graph, case.workload, case.gpu, (*case.measured, None))


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
def main(data: Path) -> None:
    """Print the table."""
    runs = list(runs_of(DataFolder(data)))
    for figure, name in enumerate(("utilization", "SM activity", "DRAM activity")):
        for source in sorted({run.source for run in runs}):
            rows = [run for run in runs if run.source == source and not np.isnan(run.measured[figure])]
            truth = np.array([run.measured[figure] for run in rows])
            for way, tell in WAYS.items() if rows else ():
                shares = np.array([tell(run)[figure] for run in rows])
                print(f"{name}, {source}, {len(rows)} runs, {way}: {rmsle(truth, 100.0 * shares):.3f}")


if __name__ == "__main__":
    main()
