"""The measured peaks of training, each with the terms of its walk, and which of them cannot be right.

GPUMemNet measured timm's models, trained in fp32 with momentum on one A100 of 40 GB, with the allocator's slack and the
CUDA context. Rows without a card are left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import BoolArray, FloatArray
from gpusage.predictors.memory.liveness import TRAINING_TERMS, terms, walk
from gpusage.predictors.memory.peak import FITTED_CONTEXT_BYTES, context_of
from gpusage_hooks.types import Workload
from gpusage_hooks.units import MIB
from gpusage_lab.learning.profiled import ProfiledRun, profiled
from gpusage_lab.learning.splits import is_sealed
from gpusage_lab.measurements.tables import DataFolder, Table
from gpusage_planning.zoo import Zoo

PEAKS, STATIC, BENCHMARK = "gpumemnet_timm_memory.csv", "timm_static_features.csv", "timm_benchmark.csv"
GPU = "a100-sxm4-40gb"
FLAT_GROWTH = 0.3
"""A model's peaks grow by at least this share of what its kept tensors grow by, or they are flat."""
_SAVED, _WEIGHTS = TRAINING_TERMS.index("saved"), TRAINING_TERMS.index("weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRows:
    """One entry per measured peak.

    Attributes:
        key: Of the zoo.
        model: timm's name.
        family: timm's module that defines it.
        batch_size: Samples per step.
        measured: Bytes.
        terms: `TRAINING_TERMS`, bytes, one row per peak.
        flat: Of a model whose peaks hardly grow with the batch: runs that died early.
        impossible: Less than weights, momentum and kept tensors together.
        fake_tensor: PyTorch's FakeTensor estimate as published, bytes.
        skipped: Why rows were left out, with how many.
    """

    key: tuple[str, ...]
    model: tuple[str, ...]
    family: tuple[str, ...]
    batch_size: npt.NDArray[np.int64]
    measured: FloatArray
    terms: FloatArray
    flat: BoolArray
    impossible: BoolArray
    fake_tensor: FloatArray
    skipped: tuple[tuple[str, int], ...]

    @property
    def sound(self) -> BoolArray:
        """Return which rows can be right."""
        good: BoolArray = ~(self.flat | self.impossible)
        return good


def memory_rows(data: DataFolder, zoo: Zoo) -> MemoryRows:
    """Return the rows whose source calls them sound and whose model has a card."""
    table = data.read(PEAKS)
    usable = table[table["quality"] == "ok"]
    sides = dict(data.read(STATIC)[["model", "img_size_px"]].astype({"img_size_px": int}).itertuples(index=False))
    keys = {name: f"timm:{name}@{side}" for name, side in sides.items()}
    modules = dict(data.read(BENCHMARK)[["model", "timm_module"]].dropna().itertuples(index=False))
    families = {name: modules.get(name, name.partition("_")[0]) for name in set(table["model"])}
    sealed = {name for name, family in families.items() if data.is_sealed and is_sealed(family)}
    is_known = [keys.get(name) in zoo and name not in sealed for name in usable["model"]]
    known = usable[is_known].reset_index(drop=True)
    values = np.array([_terms(zoo, keys[row.model], int(row.batch_size)) for row in known.itertuples()])
    measured = known["max_gpu_memory_MiB"].to_numpy(dtype=np.float64) * MIB
    values = values.reshape(-1, len(TRAINING_TERMS))
    return MemoryRows(
        key=tuple(keys[name] for name in known["model"]),
        model=tuple(known["model"]),
        family=tuple(families[name] for name in known["model"]),
        batch_size=known["batch_size"].to_numpy(dtype=np.int64),
        measured=measured,
        terms=values,
        flat=_flat(known, measured, values[:, _SAVED]),
        impossible=measured < values[:, _SAVED] + 2 * values[:, _WEIGHTS],
        fake_tensor=known["faketensor_after_backward_MiB"].to_numpy(dtype=np.float64) * MIB,
        skipped=(
            ("falls as the batch grows, or near 40 GB", len(table) - len(usable)),
            ("no card", sum(keys.get(name) not in zoo for name in usable["model"])),
            *([("sealed", int(usable["model"].isin(sealed).sum()))] if sealed else []),
        ),
    )


class OwnPeaks(NamedTuple):
    """Peaks that `gpusage profile` measured as NVML sees a process, made into what an A100's context would show."""

    terms: FloatArray
    measured: FloatArray
    family: tuple[str, ...]
    source: tuple[str, ...]
    label: tuple[str, ...]


def is_described(run: ProfiledRun) -> bool:
    """Return whether the learned weights describe the run's peak: training in fp32 with momentum."""
    workload = run.workload
    return (workload.mode, workload.optimizer) == ("train", "momentum") and workload.precision in ("fp32", "tf32")


def own_peaks(data: DataFolder, zoo: Zoo) -> OwnPeaks:
    """Return the peaks that the learned weights describe."""
    runs = [
        run
        for run in profiled(data, zoo).runs
        if run.is_alone and run.figures.get("process_bytes") and is_described(run)
    ]
    values = [_terms(zoo, run.key, run.workload.batch_size) for run in runs]
    contexts = [context_of(run.gpu).value for run in runs]
    peaks = [run.figures["process_bytes"] for run in runs]
    return OwnPeaks(
        terms=np.array(values).reshape(-1, len(TRAINING_TERMS)),
        measured=np.array(peaks) - np.array(contexts) + FITTED_CONTEXT_BYTES,
        family=tuple(run.family for run in runs),
        source=tuple(run.source for run in runs),
        label=tuple(run.job for run in runs),
    )


def _terms(zoo: Zoo, key: str, batch_size: int) -> FloatArray:
    graph = zoo.graph(key)
    lowering = WorkloadAnalysis(graph, Workload(batch_size=batch_size)).lowering
    return np.array(terms(lowering, walk(graph, lowering, batch_size)))


def _flat(table: Table, measured: FloatArray, saved_bytes: FloatArray) -> BoolArray:
    flat = np.zeros(len(measured), dtype=bool)
    for rows in table.groupby("model").indices.values():
        grows, should = np.ptp(measured[rows]), np.ptp(saved_bytes[rows])
        flat[rows] = len(rows) > 1 and grows < FLAT_GROWTH * should
    return flat
