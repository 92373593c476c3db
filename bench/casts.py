"""What an autocast of one tensor costs the host: published times in half precision at small batches, by framework.

In launches of a kernel; the shipped number is `_CAST_LAUNCHES`. The step time's fit is the shipped one throughout.

Example: python bench/casts.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unittest.mock import patch

from gpusage.predictors.times import kernels
from gpusage_lab.learning.public_record import FIGURES, compare, figures
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.compared import Compared
from gpusage_lab.published.rows import LANGUAGE, VISION
from gpusage_lab.published.runs import Run
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import Zoo, load_zoo

LAUNCHES = (0.0, 1.0, 1.5, 2.0, 3.0)
LARGEST_BATCH = 8
FRAMEWORKS = {"PyTorch": False, "TensorFlow": True}


def tables(data: DataFolder) -> Sequence[ScoreTable]:
    """Return the table: a row for each number of launches and framework."""
    columns = ("launches of a cast", "framework", *FIGURES)
    return [ScoreTable(title="Small batches under autocast", columns=columns, rows=tuple(rows(data)))]


def rows(data: DataFolder) -> Iterator[tuple[Cell, ...]]:
    """Yield the rows of the table."""
    for launches in LAUNCHES:
        record = compared(data, launches)
        for framework, is_tensorflow in FRAMEWORKS.items():
            of_framework = [one for one in record if of_tensorflow(one.run) == is_tensorflow]
            yield launches, framework, *figures(of_framework)


def compared(data: DataFolder, launches: float) -> Sequence[Compared]:
    """Return published times beside what is predicted where a cast costs so many *launches*."""
    with patch.object(kernels, "_CAST_LAUNCHES", launches):
        zoo = Zoo(load_zoo().cards)  # new graphs: a graph keeps its analyses, by the number of that time
        return compare(data, zoo, is_cast).compared


def is_cast(run: Run) -> bool:
    """Return whether *run* is a small batch of images or texts under autocast, and no compiler's."""
    is_small = run.workload.batch_size <= LARGEST_BATCH and bool(run.row.layout)
    is_eager = run.workload.engine == "eager" and not run.workload.compile
    return is_small and is_eager and run.memory is None and kernels.is_autocast(run.workload)


def of_tensorflow(run: Run) -> bool:
    """Return whether TensorFlow ran it."""
    return "tensorflow" in run.row.framework.lower()


main = command_of("casts", tables, (VISION, LANGUAGE), __file__)

if __name__ == "__main__":
    main()
