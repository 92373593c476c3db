"""Measured peaks that nothing is fitted on: GPUMemNet's random networks trained with Adam, Lucid's jobs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import FloatArray
from gpusage_hooks.types import Gpu, ModelGraph, Workload
from gpusage_hooks.units import MIB
from gpusage_lab.learning.random_networks import row_graph
from gpusage_lab.learning.scores import score
from gpusage_lab.learning.targets import ScoreTable
from gpusage_lab.measurements.tables import DataFolder, Table
from gpusage_planning.named_jobs import LUCID, workload
from gpusage_planning.zoo import Zoo

FILES = {"gpumemnet_mlp_step1.csv": 10, "gpumemnet_mlp_step2.csv": 10, "gpumemnet_cnn.csv": 1}
"""Each file, and every how many rows one is scored: enough to score by, in seconds."""
LUCID_FILE = "lucid_solo.csv"
LARGEST_MIB = 38_000
"""Above it a row of the A100 of 40 GB may have run out of memory."""
Cells = tuple[str | float | None, ...]


def unfitted_table(data: DataFolder, zoo: Zoo) -> ScoreTable:
    """Return how well the shipped predictor does on what it was not fitted on."""
    return ScoreTable(
        title="Memory: measurements that nothing was fitted on",
        columns=(
            "source",
            "rows",
            "MAPE %",
            "median %",
            "within 10 %",
            "bias %",
            "above high %",
            "coverage %",
            "high/low",
        ),
        rows=tuple(_lines(data, zoo)),
        notes=(
            "GPUMemNet's random networks: Adam on an A100, every tenth perceptron, whose least gave the context.",
            "Lucid: on an RTX 3090, where a job of few KiB takes 2,050 MiB; mean, not peak; evaluation only.",
        ),
    )


def _lines(data: DataFolder, zoo: Zoo) -> Iterator[Cells]:
    for file, step in FILES.items():
        if file in data:
            rows = _usable(data.read(file)).iloc[::step]
            ends = [_network_ends(row, "cnn" if "cnn" in file else "mlp") for row in rows.to_dict("records")]
            yield _line(file, rows["max_gpu_memory_MiB"].to_numpy(dtype=np.float64) * MIB, np.array(ends))
    if LUCID_FILE in data:
        yield from _lucid_lines(data.read(LUCID_FILE), zoo)


def _usable(rows: Table) -> Table:
    """Return the rows that ran to their end and list their layers."""
    listed = rows["layers_type_activations_params"] != "[]"
    ran = rows["status"] == "SUCCESSFUL" if "status" in rows else listed
    return rows[listed & ran & rows["max_gpu_memory_MiB"].between(1, LARGEST_MIB)]


def _network_ends(row: Table, kind: str) -> FloatArray:
    return _ends(row_graph(row, kind), Workload(batch_size=int(row["batch_size"]), optimizer="adam"), "a100")


def _lucid_lines(rows: Table, zoo: Zoo) -> Iterator[Cells]:
    known = rows[[name in LUCID and LUCID[name].key in zoo for name in rows["model"]]]
    for half in (0, 1):
        part = known[known["amp"] == half]
        ends = [
            _ends(
                zoo.graph(LUCID[row["model"]].key),
                workload(LUCID[row["model"]], row["batch_size"], half=bool(half)),
                "rtx-3090",
            )
            for row in part.to_dict("records")
        ]
        if ends:
            measured = part["gmem_MiB"].to_numpy(dtype=np.float64) * MIB
            yield _line(f"{LUCID_FILE}, {'mixed precision' if half else 'fp32'}", measured, np.array(ends))


def _ends(graph: ModelGraph, work: Workload, gpu: str) -> FloatArray:
    interval = WorkloadAnalysis(graph, work).memory_bytes([_gpu(gpu)])[0]
    return np.array([interval.low, interval.value, interval.high])


@lru_cache(maxsize=4)
def _gpu(name: str) -> Gpu:
    return builtin_catalogue().find(name)


def _line(name: str, measured: FloatArray, ends: FloatArray) -> Cells:
    low, point, high = ends.T
    figures = score(measured, point, low, high)
    above, coverage = float((measured > high).mean()), float(figures.coverage or 0.0)
    cells = (figures.mape, figures.median, figures.within_10, figures.bias, above, coverage)
    return name, len(measured), *(100 * cell for cell in cells), figures.width
