"""Measured slowdowns on parts of a GPU: MPS thread percentages and MIG slices, one job alone on each.

What each source's caveats ask for:

- RaPP (V100, eager PyTorch, inference): all models ran on images of 224 x 224, as their times at small percentages say.
  The whole GPU is the median of 85 to 100 %; rows above 50 %, where little is at stake, are left out, and so are rows
  with a time quota, and those that no GPU explains (`MOST_ABOVE_LINE`).
- ParvaGPU (A100 of 80 GB, inference): one process in a slice; the whole GPU is the slice of seven.
- MISO (A100 of 40 GB, training): the models whose sizes its code and paper leave no doubt about; their utilization was
  recorded as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from gpusage.devices.catalogue import builtin_catalogue, part_of
from gpusage.devices.shares import alone_on, share_of
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.arrays import FloatArray
from gpusage.predictors.artifacts import BusyShareEvidence, HostUncertainty
from gpusage.predictors.sharing.host import gpu_time_shares
from gpusage.predictors.sharing.slowdown import growths_with
from gpusage.predictors.times.efficiency import KERNEL_COUNT
from gpusage_hooks.types import Gpu, Workload
from gpusage_lab.learning.splits import family_of
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.zoo import Zoo

RAPP, PARVAGPU, MISO = "rapp_mps_percent.csv.gz", "parvagpu_mig.csv", "miso_a100_mig.csv"
FILES = (RAPP, PARVAGPU, MISO)
WHOLE_FROM_PERCENT = 85
WHOLE_SLICES = 7
LARGEST_PERCENT = 50
SMALLEST_PERCENT = 10
MOST_ABOVE_LINE = 1.2
"""A step that waits for its host or its SMs is convex in 1 / percentage: below the line from the smallest to the whole.

A row this many times above it was measured while its host was slower: DenseNet-121 takes 1.3 to 1.4 times as long at
10 to 50 % alike, EfficientNet-B1 1.8 to 1.9 times at 10 to 25 % and 1.0 above.
"""
SLICE_SMS = MappingProxyType({1: 14, 2: 28, 3: 42, 4: 56, 7: 98})
SLICE_MEMORY_EIGHTHS = MappingProxyType({1: 1, 2: 2, 3: 4, 4: 4, 7: 8})
"""Of an A100 under MIG: SMs, and eighths of memory, bandwidth and cache, by compute slices.

Source: NVIDIA Multi-Instance GPU User Guide, "A100 MIG Profiles".
"""
FILLING_BLOCKS = (0.5, 1.0, 2.0, 4.0)
"""For each SM, with which a kernel may fill a GPU: those that are tried."""
PARVAGPU_NAMES = MappingProxyType({"inceptionv3": "inception_v3", "mobilenetv2": "mobilenet_v2"})
MISO_KEYS = MappingProxyType({"bert": "lucid:bert@384", "cyclegan": "gavel:cyclegan@256"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownRow:
    """One measurement.

    Attributes:
        source: The file.
        key: Of the zoo.
        gpu: The whole GPU.
        share: The part of it.
        part: Which part of the GPU's SMs that is, 0 to 1.
        alone_s: The step on the whole GPU.
        utilization: The GPU's, on the whole GPU, 0 to 1, where it was recorded.
        slowdown: The step on the part over the step on the whole GPU; measured below 1 is 1.
    """

    source: str
    key: str
    family: str
    workload: Workload
    gpu: Gpu
    share: Gpu
    part: float
    alone_s: float
    slowdown: float
    utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class SlowdownColumns:
    """Rows as columns, with what the step-time predictor says of each.

    Attributes:
        busy_s: The GPU's own time on the whole GPU.
        step_s: The step there.
        growth: The GPU's own time on the part over that on the whole GPU, in proportion or as `filled` has it.
        sm_activity: Of the whole GPU.
        kernel_count: Of the step.
        by_step_time: The GPU's own time over the step's, as the known step time tells it.
        growth_by_filling: The growth by how many blocks per SM fill a GPU; where there is none, all is in
            proportion.
    """

    rows: tuple[SlowdownRow, ...]
    busy_s: FloatArray
    step_s: FloatArray
    growth: FloatArray
    sm_activity: FloatArray
    kernel_count: FloatArray
    by_step_time: FloatArray
    growth_by_filling: Mapping[float, FloatArray] = field(default_factory=dict)

    @cached_property
    def source(self) -> npt.NDArray[np.str_]:
        """Each row's file."""
        return np.array([row.source for row in self.rows])

    @cached_property
    def measured(self) -> FloatArray:
        """Each row's slowdown."""
        return np.array([row.slowdown for row in self.rows])

    @cached_property
    def alone_s(self) -> FloatArray:
        """Each row's step on the whole GPU."""
        return np.array([row.alone_s for row in self.rows])

    def with_step_time_weight(self, doubt: HostUncertainty) -> SlowdownColumns:
        """Return these columns with known step times weighed by *doubt*."""
        return replace(self, by_step_time=gpu_time_shares(self.busy_s, self.alone_s, self.kernel_count, doubt))

    def filled(self, filling_blocks: float | None) -> SlowdownColumns:
        """Return these columns with the growth of *filling_blocks*; ``None`` leaves them in proportion."""
        return self if filling_blocks is None else replace(self, growth=self.growth_by_filling[filling_blocks])

    def in_proportion(self) -> SlowdownColumns:
        """Return these columns for the rule by which all is in proportion."""
        return replace(self, growth_by_filling={})

    def working(self, evidence: BusyShareEvidence) -> FloatArray:
        """Return the GPU's own time over the step's by *evidence*; NaN where that was not measured."""
        return self._working[evidence]

    @cached_property
    def _working(self) -> dict[BusyShareEvidence, FloatArray]:
        return {
            "graph": self.busy_s / self.step_s,
            "step_time": self.by_step_time,
            "utilization": np.array([row.utilization or np.nan for row in self.rows]),
        }


def slowdown_rows(data: DataFolder, zoo: Zoo) -> tuple[SlowdownRow, ...]:
    """Return every measurement whose model the zoo has."""
    rows = (*_rapp(data), *_parvagpu(data), *_miso(data))
    return tuple(row for row in rows if row.key in zoo)


def with_predictions(rows: tuple[SlowdownRow, ...], zoo: Zoo) -> SlowdownColumns:
    """Return *rows* as columns with what is predicted of them."""
    columns, growth = np.empty((4, len(rows))), np.empty((1 + len(FILLING_BLOCKS), len(rows)))
    for index, row in enumerate(rows):
        analysis = WorkloadAnalysis(zoo.graph(row.key), row.workload)
        timing = analysis.timing([row.gpu])
        columns[:, index] = (
            timing.busy_s[0],
            timing.step_s[0],
            timing.sm_s[0] / timing.step_s[0],
            np.exp(timing.features[0, KERNEL_COUNT]),
        )
        for blocks, of_rule in zip((None, *FILLING_BLOCKS), growth, strict=True):
            of_rule[index] = growths_with(blocks, analysis, [row.gpu], [[row.share]])[0]
    busy_s, step_s, sm_activity, kernel_count = columns
    return SlowdownColumns(
        rows=rows,
        busy_s=busy_s,
        step_s=step_s,
        growth=growth[0],
        sm_activity=sm_activity,
        kernel_count=kernel_count,
        by_step_time=busy_s / np.array([row.alone_s for row in rows]),
        growth_by_filling=dict(zip(FILLING_BLOCKS, growth[1:], strict=True)),
    )


def slice_of(gpu: Gpu, slices: int) -> Gpu:
    """Return a MIG slice of an A100 as a GPU."""
    memory = SLICE_MEMORY_EIGHTHS[slices] / SLICE_MEMORY_EIGHTHS[WHOLE_SLICES]
    return replace(
        part_of(gpu, SLICE_SMS[slices] / gpu.sm_count),
        name=f"{gpu.name}:{slices}g",
        parent_gpu=gpu.name,
        bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * memory,
        l2_bytes=int(gpu.l2_bytes * memory),
        memory_bytes=int(gpu.memory_bytes * memory),
    )


def _rapp(data: DataFolder) -> Iterator[SlowdownRow]:
    gpu = builtin_catalogue().find("v100-sxm2-16gb")
    table = data.read(RAPP)
    table = table[table["time_quota_percent"] == 100]  # percent
    for (model, batch_size), group in table.groupby(["model", "batch_size"]):
        latency_ms = group.set_index("mps_percent")["latency_ms"]
        whole_ms = float(latency_ms[latency_ms.index >= WHOLE_FROM_PERCENT].median())
        times = latency_ms[latency_ms.index >= SMALLEST_PERCENT].sort_index() / whole_ms
        steepness = (max(float(times.iloc[0]), 1.0) - 1) / (100 / times.index[0] - 1)
        for percent, part_ms in latency_ms.items():
            most_ms = whole_ms * MOST_ABOVE_LINE * (1 + steepness * (100 / percent - 1))
            if SMALLEST_PERCENT <= percent <= LARGEST_PERCENT and part_ms <= most_ms:
                yield SlowdownRow(
                    source=RAPP,
                    key=f"torchvision:{model}@224",
                    family=family_of(model),
                    workload=Workload(batch_size=int(batch_size), mode="infer"),
                    gpu=gpu,
                    share=alone_on(share_of(gpu, int(percent)), gpu),
                    part=percent / 100,
                    alone_s=whole_ms / 1e3,
                    slowdown=max(float(part_ms) / whole_ms, 1.0),
                )


def _parvagpu(data: DataFolder) -> Iterator[SlowdownRow]:
    gpu = builtin_catalogue().find("a100-sxm4-80gb")
    table = data.read(PARVAGPU)
    table = table[(table["process_count"] == 1) & (table["throughput_samples_per_s"] > 0)]
    for (model, batch_size), group in table.groupby(["model", "batch_size"]):
        rates = group.set_index("mig_slices")["throughput_samples_per_s"].to_dict()
        name = PARVAGPU_NAMES.get(model, model)
        for slices in sorted(rates.keys() - {WHOLE_SLICES}) if WHOLE_SLICES in rates else ():
            yield SlowdownRow(
                source=PARVAGPU,
                key=f"torchvision:{name}@224",
                family=family_of(name),
                workload=Workload(batch_size=int(batch_size), mode="infer"),
                gpu=slice_of(gpu, WHOLE_SLICES),
                share=slice_of(gpu, int(slices)),
                part=slices / WHOLE_SLICES,
                alone_s=batch_size / rates[WHOLE_SLICES],
                slowdown=max(rates[WHOLE_SLICES] / rates[slices], 1.0),
            )


def _miso(data: DataFolder) -> Iterator[SlowdownRow]:
    gpu = builtin_catalogue().find("a100-sxm4-40gb")
    table = data.read(MISO)
    table = table[table["model"].isin(MISO_KEYS)]
    for (model, batch_size), group in table.groupby(["model", "batch_size"]):
        times = {
            int(name[0]): seconds for name, seconds in zip(group["mig_slice"], group["iter_time_median_s"], strict=True)
        }
        for slices in sorted(times.keys() - {WHOLE_SLICES}) if WHOLE_SLICES in times else ():
            yield SlowdownRow(
                source=MISO,
                key=MISO_KEYS[model],
                family=family_of(model),
                workload=Workload(batch_size=int(batch_size), optimizer="adam"),
                gpu=slice_of(gpu, WHOLE_SLICES),
                share=slice_of(gpu, slices),
                part=slices / WHOLE_SLICES,
                alone_s=times[WHOLE_SLICES],
                slowdown=max(times[slices] / times[WHOLE_SLICES], 1.0),
                utilization=float(group["sm_util_pct_a100_solo"].iloc[0]) / 100,
            )
