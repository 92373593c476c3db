"""GPU busy from the figure of another batch, on open families: how much of the wait belongs to each step.

Run: ``python bench/busy_wait.py --data ../shared/data``, seconds. It prints the line of decision 49: RMSLE on percent
and rank correlation, for the figure taken as it is and for each `MAX_STEP_GAPS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from busy_account import FAMILIES
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.sharing.host import step_account, utilization_at_batch
from gpusage_lab.learning.activity_known import other_batch, solo_run
from gpusage_lab.learning.activity_tests import Test, real_tests
from gpusage_lab.learning.scores import rank_correlation, rmsle
from gpusage_lab.learning.seal import is_sealed
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.command import command_of

SOURCES = ("Lucid, training", "MISO, training")
"""Those that have several batches of a model."""
MAX_STEP_GAPS = (0.0, 1.0, 2.0, 4.0, 8.0, np.inf)


def estimates(test: Test, other: Test) -> list[float]:
    """Return the percent of *test* as *other* has it, and for each of `MAX_STEP_GAPS` as it tells it."""
    share = solo_run(other).utilization or 0.0
    there, here = (step_account(WorkloadAnalysis(one.graph, one.workload), [one.gpu]) for one in (other, test))
    growth = test.workload.batch_size / other.workload.batch_size
    return [
        100 * share,
        *(100 * float(utilization_at_batch(share, there, here, growth, most)[0]) for most in MAX_STEP_GAPS),
    ]


def rows_of(source: str, tests: Sequence[Test]) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows of *source*."""
    pairs = [(test, other) for test in tests if (other := other_batch(test, tests)) is not None]
    truth = np.array([test.utilization for test, _ in pairs], dtype=float)
    columns = np.array([estimates(*pair) for pair in pairs]).T
    for name, column in zip(("as it is", *(f"at most {most:g} gaps" for most in MAX_STEP_GAPS)), columns, strict=True):
        yield source, name, float(rmsle(truth, column)), rank_correlation(truth, column)


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return the figures of each source."""
    tests = [test for test in real_tests(data) if test.utilization is not None]
    tests = [test for test in tests if not is_sealed(FAMILIES.get(test.model, test.model))]
    rows = (row for source in SOURCES for row in rows_of(source, [test for test in tests if test.source == source]))
    return [
        ScoreTable(
            title="GPU busy from the figure of another batch, open families",
            columns=("source", "what of the wait each step has", "RMSLE", "rank correlation"),
            rows=tuple(rows),
        )
    ]


main = command_of(
    "busy wait",
    tables,
    ("lucid_solo.csv", "glet_util.csv", "miso_a100_mig.csv", "lambda_monitor_util_memory.csv"),
    __file__,
)

if __name__ == "__main__":
    main()
