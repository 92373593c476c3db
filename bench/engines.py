"""How TensorRT's numbers were fitted: what they do to its published times, and to those of a GPU that is left out.

The floor of a kernel and the share of what is left unfused are those with the least mean error of a grid, once of all
rows, and once for each GPU of those of the others. The width of the interval is what 90 % of the latter lie within.

Example: python bench/engines.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
import numpy.typing as npt

from gpusage.predictors import engines
from gpusage_hooks.types import Engine
from gpusage_lab.learning.public_record import compare
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.compared import Compared
from gpusage_lab.published.rows import LANGUAGE, VISION
from gpusage_lab.zoo.cards import Zoo, load_zoo

USUAL = Path(__file__).resolve().parents[2] / "shared" / "data"
ENGINE: Engine = "tensorrt"
FLOORS_S = (2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 8e-6)
UNFUSED_SHARES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
LINE = "| {} | {} | {} | {} | {} | {} | {} |"

FIGURES = ("median ratio", "median factor", "factor of 90 %")

Errors = npt.NDArray[np.float64]


@click.command(help=__doc__)
@click.option("--data", "folder", type=click.Path(path_type=Path), default=USUAL)
def main(*, folder: Path) -> None:
    """Print a line for each GPU that is left out, for all of them, and for the numbers that are shipped."""
    data = DataFolder(folder)
    if VISION not in data or LANGUAGE not in data:
        click.echo(f"Folder '{folder}' must have {VISION} and {LANGUAGE}; got others. Name it with --data.", err=True)
        return
    shipped = engines.ENGINES[ENGINE]
    grid = list(product(FLOORS_S, UNFUSED_SHARES))
    tried = {
        numbers: compared(data, replace(shipped, floor_s=numbers[0], unfused_share=numbers[1])) for numbers in grid
    }
    errors = {numbers: log_ratios(rows) for numbers, rows in tried.items()}
    gpus = np.array([row.run.gpu.name for row in tried[grid[0]]])
    click.echo(LINE.format("left out of the fit", "n", "floor, us", "unfused share", *FIGURES))
    click.echo("|---|--:|--:|--:|--:|--:|--:|")
    unseen = []
    for gpu in sorted(set(gpus.tolist())):
        numbers = best(errors, gpus != gpu)
        unseen.append(errors[numbers][gpus == gpu])
        click.echo(line(gpu, numbers, unseen[-1]))
    click.echo(line("each GPU in turn, together", None, np.concatenate(unseen)))
    numbers = best(errors, np.full(len(gpus), fill_value=True))
    click.echo(line("nothing", numbers, errors[numbers]))
    click.echo(line("what is shipped", (shipped.floor_s, shipped.unfused_share), log_ratios(compared(data, shipped))))


def compared(data: DataFolder, rules: engines.EngineRules) -> Sequence[Compared]:
    """Return the engine's published times beside what *rules* predict."""
    with patch.dict(engines.ENGINES, {ENGINE: rules}):
        zoo = Zoo(load_zoo().cards)  # new graphs: a graph keeps its analyses, by the rules of that time
        return compare(data, zoo, lambda run: run.workload.engine == ENGINE).compared


def log_ratios(rows: Sequence[Compared]) -> Errors:
    """Return the logarithm of predicted over published time, one for each row."""
    return np.log([row.ratio for row in rows])


def best(errors: dict[tuple[float, float], Errors], chosen: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Return the numbers with the least mean error of the *chosen* rows."""
    return min(errors, key=lambda numbers: float(np.abs(errors[numbers][chosen]).mean()))


def line(name: str, numbers: tuple[float, float] | None, errors: Errors) -> str:
    """Return a line of the table."""
    floor, unfused = (f"{1e6 * numbers[0]:g}", f"{numbers[1]:g}") if numbers else ("", "")
    factor, most = np.exp(np.quantile(np.abs(errors), (0.5, 0.9)))
    ratio = np.exp(np.median(errors))
    return LINE.format(name, len(errors), floor, unfused, f"{ratio:.2f}", f"{factor:.2f}", f"{most:.2f}")


if __name__ == "__main__":
    main()
