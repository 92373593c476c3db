"""What an autocast of one tensor costs the host: published times in half precision at small batches, by framework.

In launches of a kernel; the shipped number is `_CAST_LAUNCHES`. The step time's fit is the shipped one throughout.

Example: python bench/casts.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np

from gpusage.predictors import kernels
from gpusage_lab.learning.public_record import compare
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.compared import Compared
from gpusage_lab.published.rows import LANGUAGE, VISION
from gpusage_lab.published.runs import Run
from gpusage_lab.zoo.cards import Zoo, load_zoo

USUAL = Path(__file__).resolve().parents[2] / "shared" / "data"
LAUNCHES = (0.0, 1.0, 1.5, 2.0, 3.0)
LARGEST_BATCH = 8
FRAMEWORKS = {"PyTorch": False, "TensorFlow": True}
LINE = "| {} | {} | {} | {} | {} | {} |"


@click.command(help=__doc__)
@click.option("--data", "folder", type=click.Path(path_type=Path), default=USUAL)
def main(*, folder: Path) -> None:
    """Print a line for each number of launches and framework."""
    data = DataFolder(folder)
    if VISION not in data or LANGUAGE not in data:
        click.echo(f"Folder '{folder}' must have {VISION} and {LANGUAGE}; got others. Name it with --data.", err=True)
        return
    click.echo(LINE.format("launches of a cast", "framework", "n", "median ratio", "median factor", "inside %"))
    click.echo("|--:|---|--:|--:|--:|--:|")
    for launches in LAUNCHES:
        rows = compared(data, launches)
        for framework, is_tensorflow in FRAMEWORKS.items():
            click.echo(line(launches, framework, [row for row in rows if of_tensorflow(row.run) == is_tensorflow]))


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


def line(launches: float, framework: str, rows: Sequence[Compared]) -> str:
    """Return a line of the table."""
    errors = np.log([row.ratio for row in rows])
    ratio, factor = np.exp(np.median(errors)), np.exp(np.median(np.abs(errors)))
    inside = 100.0 * float(np.mean([row.is_inside for row in rows]))
    return LINE.format(f"{launches:g}", framework, len(rows), f"{ratio:.2f}", f"{factor:.2f}", f"{inside:.0f}")


if __name__ == "__main__":
    main()
