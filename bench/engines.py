"""How TensorRT's number was fitted: what it does to its published times, and to those of a GPU that is left out.

The floor of a kernel is that with the least mean error of a grid, once of all rows, and once for each GPU of those of
the others. The width of the interval is what 90 % of the latter lie within.

Example: python bench/engines.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
import numpy.typing as npt

from gpusage.predictors.times import engines
from gpusage_hooks.types import Engine
from gpusage_lab.learning.public_record import compare
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.published.compared import Compared
from gpusage_lab.published.rows import LANGUAGE, VISION
from gpusage_planning.zoo import Zoo, load_zoo

USUAL = Path(__file__).resolve().parents[2] / "shared" / "data"
ENGINE: Engine = "tensorrt"
FLOORS_S = tuple(1e-6 * us for us in range(1, 11))
LINE = "| {} | {} | {} | {} | {} | {} |"

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
    tried = {floor_s: compared(data, replace(shipped, floor_s=floor_s)) for floor_s in FLOORS_S}
    errors = {floor_s: log_ratios(rows) for floor_s, rows in tried.items()}
    gpus = np.array([row.run.gpu.name for row in tried[FLOORS_S[0]]])
    click.echo(LINE.format("left out of the fit", "n", "floor, us", *FIGURES))
    click.echo("|---|--:|--:|--:|--:|--:|")
    unseen = []
    for gpu in sorted(set(gpus.tolist())):
        floor_s = best(errors, gpus != gpu)
        unseen.append(errors[floor_s][gpus == gpu])
        click.echo(line(gpu, floor_s, unseen[-1]))
    click.echo(line("each GPU in turn, together", None, np.concatenate(unseen)))
    floor_s = best(errors, np.full(len(gpus), fill_value=True))
    click.echo(line("nothing", floor_s, errors[floor_s]))
    click.echo(line("what is shipped", shipped.floor_s, log_ratios(compared(data, shipped))))


def compared(data: DataFolder, rules: engines.EngineRules) -> Sequence[Compared]:
    """Return the engine's published times beside what *rules* predict."""
    with patch.dict(engines.ENGINES, {ENGINE: rules}):
        zoo = Zoo(load_zoo().cards)  # new graphs: a graph keeps its analyses, by the rules of that time
        return compare(data, zoo, lambda run: run.workload.engine == ENGINE).compared


def log_ratios(rows: Sequence[Compared]) -> Errors:
    """Return the logarithm of predicted over published time, one for each row."""
    return np.log([row.ratio for row in rows])


def best(errors: dict[float, Errors], chosen: npt.NDArray[np.bool_]) -> float:
    """Return the floor with the least mean error of the *chosen* rows."""
    return min(errors, key=lambda floor_s: float(np.abs(errors[floor_s][chosen]).mean()))


def line(name: str, floor_s: float | None, errors: Errors) -> str:
    """Return a line of the table."""
    floor = f"{1e6 * floor_s:g}" if floor_s else ""
    factor, most = np.exp(np.quantile(np.abs(errors), (0.5, 0.9)))
    ratio = np.exp(np.median(errors))
    return LINE.format(name, len(errors), floor, f"{ratio:.2f}", f"{factor:.2f}", f"{most:.2f}")


if __name__ == "__main__":
    main()
