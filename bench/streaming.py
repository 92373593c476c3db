"""What share of a memory's peak single operators reach: those of one number after the other, and batched products.

The limits of `gpusage.predictors.times.streaming`, which hold answers of language models, rest on these.

Example: python bench/streaming.py --data ../shared/data
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.times.streaming import FILLING_S, LEAST_SHARE
from gpusage_hooks.types import Gpu
from gpusage_lab.learning.step_operators import DEVICES, FP32
from gpusage_lab.measurements.tables import DataFolder

INPUTS_AND_OUTPUT = {"add": 3, "mul": 3, "div": 3, "relu": 2, "gelu": 2, "tanh": 2, "addu": 2, "mulu": 2}
MANY_BYTES = 300e6
"""Of an operator on single numbers: no cache helps."""
PRODUCT_BYTES = (1e6, 1e8)
"""Of a batched product: the fewest of all, and the fewest whose share of the peak is told."""
FEW_COLUMNS, SHORT_SUM = 4, 32


def most_share(table: Any, gpu: Gpu) -> float:  # noqa: ANN401 - a pandas DataFrame
    """Return the most that an operator on single numbers reached."""
    rows = table[table.op.isin(list(INPUTS_AND_OUTPUT))]
    sizes = rows[["b", "m", "n", "h"]].fillna(1.0).prod(axis=1)
    traffic = FP32 * sizes * rows.op.map(INPUTS_AND_OUTPUT).astype(float)
    share = traffic / gpu.bandwidth_bytes_per_s / (rows.latency_ms / 1e3)
    return float(share[traffic >= MANY_BYTES].max())


def products(table: Any, gpu: Gpu) -> tuple[int, float, float]:  # noqa: ANN401 - as above
    """Return how many products of few columns there are, their median share, and how far 9 of 10 lie over the limit."""
    rows = table[(table.op == "bmm") & (table[["m", "n"]].min(axis=1) <= FEW_COLUMNS)]
    rows = rows[(rows.k >= SHORT_SUM) & (rows[["m", "n"]].max(axis=1) >= SHORT_SUM)]
    traffic = FP32 * rows.b * (rows.m * rows.k + rows.k * rows.n + rows.m * rows.n)
    ideal_s, measured_s = traffic / gpu.bandwidth_bytes_per_s, rows.latency_ms / 1e3
    least, much = (traffic >= one for one in PRODUCT_BYTES)
    over = measured_s / (ideal_s / LEAST_SHARE + FILLING_S)
    return int(much.sum()), float((ideal_s / measured_s)[much].median()), float(over[least].quantile(0.9))


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
def main(data: Path) -> None:
    """Print one line for each GPU that has such operators."""
    table = DataFolder(data).read("neusight_ops.csv.gz")
    for device, group in table[table.device.isin(list(DEVICES)) & (table.latency_ms > 0)].groupby("device"):
        gpu = builtin_catalogue().find(DEVICES[device])
        count, share, over = products(group, gpu)
        print(f"{gpu.name}: single numbers at most {most_share(group, gpu):.2f} of the peak", end="; ")
        print(f"{count} products of few columns, median {share:.2f}, 9 of 10 within {over:.2f} times the limit")


if __name__ == "__main__":
    main()
