"""GPU busy from the figure of another batch, on open families: how much of the wait belongs to each step.

Run: ``python bench/busy_wait.py --data ../shared/data``, seconds. It prints the line of decision 49: RMSLE on percent
and rank correlation, for the figure taken as it is and for each `MOST_GAPS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from busy_account import FAMILIES
from gpusage.predictors.question import Question
from gpusage.predictors.waits import account_of, carried
from gpusage_lab.learning.activity_known import other_batch, seen
from gpusage_lab.learning.activity_tests import Test, real_tests
from gpusage_lab.learning.scores import rank_correlation, rmsle
from gpusage_lab.learning.seal import is_sealed
from gpusage_lab.measurements.tables import DataFolder

MOST_GAPS = (0.0, 1.0, 2.0, 4.0, 8.0, np.inf)


def told(test: Test, other: Test) -> list[float]:
    """Return the percent of *test* as *other* has it, and for each of `MOST_GAPS` as it tells it."""
    share = seen(other).utilization or 0.0
    there, here = (account_of(Question(one.graph, one.workload), [one.gpu]) for one in (other, test))
    growth = test.workload.batch_size / other.workload.batch_size
    return [100 * share, *(100 * float(carried(share, there, here, growth, most)[0]) for most in MOST_GAPS)]


def show(source: str, tests: Sequence[Test]) -> None:
    """Print the lines of *source*."""
    pairs = [(test, other) for test in tests if (other := other_batch(test, tests)) is not None]
    truth = np.array([test.utilization for test, _ in pairs], dtype=float)
    columns = np.array([told(*pair) for pair in pairs]).T
    for name, column in zip(("as it is", *(f"at most {most:g} gaps" for most in MOST_GAPS)), columns, strict=True):
        print(f"{source}, {name}: {rmsle(truth, column):.3f}, rank {rank_correlation(truth, column) or 0.0:.3f}")


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
def main(data: Path) -> None:
    """Print the figures of each source that has several batches."""
    tests = [test for test in real_tests(DataFolder(data)) if test.utilization is not None]
    tests = [test for test in tests if not is_sealed(FAMILIES.get(test.model, test.model))]
    for source in ("Lucid, training", "MISO, training"):
        show(source, [test for test in tests if test.source == source])


if __name__ == "__main__":
    main()
