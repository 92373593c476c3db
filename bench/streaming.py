"""What share of a memory's peak single operators reach: those of one number after the other, and batched products.

The limits of `gpusage.predictors.times.kernel_times`, which hold answers of language models, rest on these.

Example: python bench/streaming.py --data ../shared/data
"""

from __future__ import annotations

from math import isnan
from typing import Any

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.times.kernel_times import FILLING_S, LEAST_SHARE
from gpusage_hooks.types import Gpu
from gpusage_lab.learning.step_operators import DEVICES, FP32
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.command import command_of

FILE = "neusight_ops.csv.gz"
INPUTS_AND_OUTPUT = {"add": 3, "mul": 3, "div": 3, "relu": 2, "gelu": 2, "tanh": 2, "addu": 2, "mulu": 2}
MANY_BYTES = 300e6
"""Of an operator on single numbers: no cache helps."""
PRODUCT_BYTES = (1e6, 1e8)
"""Of a batched product: the fewest of all, and the fewest whose share of the peak is told."""
FEW_COLUMNS, SHORT_SUM = 4, 32


def most_share(table: Any, gpu: Gpu) -> float:  # a pandas DataFrame
    """Return the most that an operator on single numbers reached."""
    rows = table[table.op.isin(list(INPUTS_AND_OUTPUT))]
    sizes = rows[["b", "m", "n", "h"]].fillna(1.0).prod(axis=1)
    traffic = FP32 * sizes * rows.op.map(INPUTS_AND_OUTPUT).astype(float)
    share = traffic / gpu.bandwidth_bytes_per_s / (rows.latency_ms / 1e3)
    return float(share[traffic >= MANY_BYTES].max())


def products(table: Any, gpu: Gpu) -> tuple[int, float, float]:
    """Return how many products of few columns there are, their median share, and how far 9 of 10 lie over the limit."""
    rows = table[(table.op == "bmm") & (table[["m", "n"]].min(axis=1) <= FEW_COLUMNS)]
    rows = rows[(rows.k >= SHORT_SUM) & (rows[["m", "n"]].max(axis=1) >= SHORT_SUM)]
    traffic = FP32 * rows.b * (rows.m * rows.k + rows.k * rows.n + rows.m * rows.n)
    ideal_s, measured_s = traffic / gpu.bandwidth_bytes_per_s, rows.latency_ms / 1e3
    least, much = (traffic >= one for one in PRODUCT_BYTES)
    over = measured_s / (ideal_s / LEAST_SHARE + FILLING_S)
    return int(much.sum()), float((ideal_s / measured_s)[much].median()), float(over[least].quantile(0.9))


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return one row for each GPU that has such operators."""
    table = data.read(FILE)
    measured = table[table.device.isin(list(DEVICES)) & (table.latency_ms > 0)]
    find = builtin_catalogue().find
    rows = (_row(group, find(DEVICES[device])) for device, group in measured.groupby("device"))
    return [
        ScoreTable(
            title="NeuSight's operators in fp32, over the memory's peak",
            columns=("gpu", "single numbers, most", "products of few columns", "median", "9 of 10 within x the limit"),
            rows=tuple(row for row in rows if row[1] is not None),
        )
    ]


def _row(table: Any, gpu: Gpu) -> tuple[Cell, ...]:
    figures = (most_share(table, gpu), *products(table, gpu))
    return (gpu.name, *(None if isnan(figure) else figure for figure in figures))


main = command_of("streaming", tables, (FILE,), __file__)

if __name__ == "__main__":
    main()
