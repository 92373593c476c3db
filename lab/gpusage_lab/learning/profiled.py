"""Rows of `gpusage profile`, read as the public measurements are: each table is a campaign of its own.

Tables are the files of the folder ``profile`` in the data folder. Rows that no fit can use are left out and counted by
reason, most of all those of a trial without a GPU, however they look.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, cast

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.experience.profile_rows import COLUMNS
from gpusage_hooks.errors import DeviceError, RequestError
from gpusage_hooks.types import Gpu, Mode, ModelGraph, Optimizer, Precision, Workload
from gpusage_lab.learning.splits import family_of
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.profiling.table import CsvTable
from gpusage_planning.zoo import Zoo, key_of_profiled, load_zoo

FOLDER = "profile"
SAME_MODELS = {"hf:bert-large-uncased": "bert_large", "hf:gpt2-large": "gpt2_large", "hf:opt-1.3b": "opt_13"}
"""Models that NeuSight measured too, where each is a family of its own."""
WITHOUT_GPU, TOO_LARGE, FAILED = "measured without a GPU", "ran out of memory", "failed or stopped"
UNKNOWN_GPU, NO_CARD = "GPU not in the catalogue", "model without a card in the zoo"
_FIGURES = (
    *("step_time_s", "steps_per_s", "process_bytes", "used_bytes", "stall_ratio", "thread_percent"),
    *("gpu_utilization", "sm_activity", "dram_activity"),
)


class ProfiledRun(NamedTuple):
    """One side of a measurement that succeeded.

    Attributes:
        item: What the table calls the measurement; its sides have the same.
        job: The model and how it was run, as users write it.
        key: Of the zoo.
        campaign: The table's name.
        figures: What was measured, by column, where it was.
    """

    item: str
    kind: str
    sharing: str
    job: str
    key: str
    family: str
    campaign: str
    workload: Workload
    gpu: Gpu
    figures: Mapping[str, float]

    @property
    def graph(self) -> ModelGraph:
        """The model's graph."""
        return load_zoo().graph(self.key)

    @property
    def source(self) -> str:
        """How tables and cards name rows like this one."""
        return f"profile {self.campaign} {self.workload.mode}"

    @property
    def is_alone(self) -> bool:
        """Whether the GPU was the job's own, without MPS, caps or a stalled input."""
        return self.kind == "solo" and not self.figures.get("stall_ratio", 0.0)


class Profiled(NamedTuple):
    """The runs in the order of the files, and how many rows were left out, by reason."""

    runs: tuple[ProfiledRun, ...]
    left_out: Mapping[str, int]

    @property
    def note(self) -> str:
        """What was left out, for people; empty where nothing was."""
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items()))


@lru_cache(maxsize=4)
def profiled(data: DataFolder, zoo: Zoo | None = None) -> Profiled:
    """Return the runs of every table.

    Raises:
        RequestError: A file is not a table of `gpusage profile`.
    """
    zoo = zoo or load_zoo()
    runs: list[ProfiledRun] = []
    left_out: Counter[str] = Counter()
    for path in sorted((data.folder / FOLDER).glob("*.csv")):
        of_table, reasons = _read_table(path, zoo)
        runs += of_table
        left_out.update(reasons)
    return Profiled(tuple(runs), MappingProxyType(dict(left_out)))


def _read_table(path: Path, zoo: Zoo) -> tuple[list[ProfiledRun], list[str]]:
    """Return the runs of one table, and why each of the other rows is left out."""
    try:
        rows = [(row, _objection(row, zoo)) for row in _rows(path)]
        return [_run(row, path.stem) for row, why in rows if not why], [why for _, why in rows if why]
    except (ValueError, csv.Error) as error:
        raise _not_ours(path, f"what cannot be read ({error})") from error


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of one file."""
    with path.open(encoding="utf-8") as file:
        header = tuple(file.readline().strip().split(","))
    if header != COLUMNS:
        raise _not_ours(path, "other columns")
    return CsvTable(path, COLUMNS).rows()


def _not_ours(path: Path, trouble: str) -> RequestError:
    rule = f"Table '{path}' must be one that 'gpusage profile' of this version wrote; got {trouble}."
    return RequestError(f"{rule} Measure again, or take it out of the folder.")


def _objection(row: Mapping[str, str | None], zoo: Zoo) -> str:
    if row["device"] != "cuda" or row["sharing"] == "cpu":
        return WITHOUT_GPU
    if row["status"] != "ok":
        return TOO_LARGE if row["status"] == "oom" else FAILED
    try:
        builtin_catalogue().find(row["gpu"] or "")
    except DeviceError:
        return UNKNOWN_GPU
    return "" if key_of_profiled(row["model"] or "", row["shape"] or "") in zoo else NO_CARD


def _run(row: Mapping[str, str], campaign: str) -> ProfiledRun:
    model = row["model"]
    workload = Workload(
        batch_size=int(row["batch_size"]),
        mode=cast("Mode", row["mode"]),
        precision=cast("Precision", row["precision"]),
        optimizer=cast("Optimizer", row["optimizer"] or "none"),
    )
    parts = (model, f"batch={workload.batch_size}", f"mode={workload.mode}", f"precision={workload.precision}")
    return ProfiledRun(
        item=row["item"],
        kind=row["kind"],
        sharing=row["sharing"],
        job=",".join((*parts, row["shape"]) if row["shape"] else parts),
        key=key_of_profiled(model, row["shape"]),
        family=SAME_MODELS.get(model) or family_of(model.partition(":")[2].removeprefix("tf_")),
        campaign=campaign,
        workload=workload,
        gpu=builtin_catalogue().find(row["gpu"]),
        figures={name: float(row[name]) for name in _FIGURES if row[name]},
    )
