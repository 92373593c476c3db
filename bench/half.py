"""Convolutional networks in half precision: published training, and what the bounds and the layout change.

The bound of `gpusage.predictors.times.gradients` rests on NVIDIA's rows. It was chosen without Lambda's (ResNet-50,
channels first), whose file has no licence: they are scored only. All is the shipped fit: families are seen.

Example: python bench/half.py --data ../shared/data
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.times.efficiency import efficiency_of
from gpusage.predictors.times.step_time import timing_with
from gpusage_hooks.types import Layout, Precision, Workload
from gpusage_lab.learning.seal import is_sealed
from gpusage_lab.learning.step_left_out import left_out_rows
from gpusage_lab.learning.step_rows import graph_as_measured
from gpusage_lab.learning.targets import Cell, ScoreTable
from gpusage_lab.measurements.tables import DataFolder
from gpusage_lab.seeds.command import command_of
from gpusage_planning.zoo import load_zoo

PUBLISHED, LAMBDA, TIMM = "published_vision.csv.gz", "lambda_throughput.csv", "timm_benchmark.csv"
DEEPBENCH = "deepbench_conv.csv"
IMAGE_CHANNELS = 3
"""Or fewer: the model's input, of which no training step computes the gradient."""
SOURCE = "NVIDIA/DeepLearningExamples"
KEYS = {
    "ResNeXt101-32x4d": "timm:resnext101_32x4d@224",
    "SE-ResNeXt101-32x4d": "timm:seresnext101_32x4d@224",
    "efficientnet-b0": "timm:efficientnet_b0@224",
    "efficientnet-widese-b0": "timm:efficientnet_b0@224",
    "efficientnet-b4": "timm:efficientnet_b4@384",
    "efficientnet-widese-b4": "timm:efficientnet_b4@384",
    "EfficientNet v1-B4": "timm:efficientnet_b4@384",
    "EfficientNet v2-S": "timm:tf_efficientnetv2_s@300",
}
"""Cards of the published models; B4 was trained at 380."""
GPUS = {
    "A100-80GB": "a100-sxm4-80gb",
    "A100-40GB": "a100-sxm4-40gb",
    "V100-16GB": "v100-sxm2-16gb",
    "V100-32GB": "v100-sxm2-32gb",
}
PRECISIONS: dict[str, Precision] = {"fp32": "fp32", "tf32": "fp32", "amp-fp16": "fp16"}
FIRST: Layout = "channels_first"
LAYOUTS: dict[str, Layout] = {"no": FIRST, "yes": "channels_last", "unknown": "channels_last"}
"""By the table's word; TensorFlow's, which it does not know, has channels last on tensor cores."""
LAMBDA_GPUS = {
    "LambdaCloud V100 16GB": "v100-sxm2-16gb",
    "RTX 3090": "rtx-3090",
    "RTX 4090": "rtx-4090",
    "LambdaCloud A100 40GB PCIe": "a100-pcie-40gb",
    "A100 80GB PCIe": "a100-pcie-80gb",
    "A100 80GB SXM4": "a100-sxm4-80gb",
    "H100 80GB PCIe Gen5": "h100-pcie-80gb",
    "H100 80GB SXM5": "h100-sxm5-80gb",
}
COLUMNS = ("rows of", "n", "bias %", "off by %", "inside %", "no bounds", "no bounds, channels first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One published run, in the order of the file."""

    group: str
    key: str
    gpu: str
    workload: Workload
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Ours over what was published: as shipped, without bounds, and without bounds and layouts; and if it is inside."""

    ratio: float
    unbounded: float
    plain: float
    is_inside: bool


def published(data: DataFolder) -> Iterator[Published]:
    """Yield NVIDIA's training runs on one GPU whose models have cards."""
    table = data.read(PUBLISHED)
    table = table[(table.source == SOURCE) & (table["mode"] == "train") & (table.gpu_count == 1)]
    table = table[table.gpu.isin(list(GPUS)) & table.precision.isin(list(PRECISIONS)) & table.model.isin(list(KEYS))]
    for row in table[~table.note.str.contains("SUSPECT|CHECK")].itertuples():
        precision = PRECISIONS[row.precision]
        workload = Workload(
            batch_size=int(row.batch_per_gpu),
            precision=precision,
            layout=FIRST if precision == "fp32" else LAYOUTS[row.layout],
        )
        framework = "PyTorch" if row.path.startswith("PyTorch") else "TensorFlow"
        yield Published(
            group=f"{framework}, {row.gpu.split('-')[0]}, {row.precision}",
            key=KEYS[row.model],
            gpu=GPUS[row.gpu],
            workload=workload,
            step_s=workload.batch_size / row.value,
        )


def lambda_runs(data: DataFolder) -> Iterator[Published]:
    """Yield Lambda's trainings of ResNet-50 on one GPU."""
    table = data.read(LAMBDA)
    table = table[(table.campaign == "v0") & (table.task == "resnet50") & (table.num_gpu == 1)]
    for row in table[table.name_gpu.isin(list(LAMBDA_GPUS))].itertuples():
        workload = Workload(batch_size=int(row.batch_size_or_batch_tokens), precision=row.precision)
        yield Published(
            group=f"ResNet-50, {row.precision}, {LAMBDA_GPUS[row.name_gpu]}",
            key="timm:resnet50@224",
            gpu=LAMBDA_GPUS[row.name_gpu],
            workload=workload,
            step_s=workload.batch_size / row.throughput_samples_or_tokens_per_s,
        )


def predicted(run: Published) -> Predicted:
    """Return what is predicted of *run*."""
    gpu, graph = builtin_catalogue().find(run.gpu), load_zoo().graph(run.key)
    analysis = WorkloadAnalysis(graph, run.workload)
    interval = analysis.step_time_s([gpu])[0]

    def unbounded_s(workload: Workload) -> float:
        of_one = WorkloadAnalysis(graph, workload)
        learned = efficiency_of(of_one.pretrained.step_time)
        return float(timing_with(learned, of_one.kernels, [gpu], workload.precision).step_s[0])

    return Predicted(
        ratio=interval.value / run.step_s,
        unbounded=unbounded_s(run.workload) / run.step_s,
        plain=unbounded_s(replace(run.workload, layout=FIRST)) / run.step_s,
        is_inside=interval.low <= run.step_s <= interval.high,
    )


def _rows(runs: Iterable[Published]) -> Iterator[tuple[Cell, ...]]:
    groups: dict[str, list[Predicted]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(predicted(run))
    for name in sorted(groups):
        group = groups[name]
        ratio, unbounded, plain = (
            np.array([getattr(one, of) for one in group]) for of in ("ratio", "unbounded", "plain")
        )
        inside = 100.0 * float(np.mean([one.is_inside for one in group]))
        yield (
            name,
            len(group),
            100.0 * float(np.median(ratio) - 1.0),
            _miss(ratio),
            inside,
            *map(_miss, (unbounded, plain)),
        )


def _miss(ratio: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the median miss in percent, too long and too short alike."""
    return 100.0 * float(np.expm1(np.median(np.abs(np.log(ratio)))))


def tables(data: DataFolder) -> list[ScoreTable]:
    """Return published training, and timm's runs with channels last."""
    of_nvidia = tuple(_rows(published(data)))
    half = [run for run in published(data) if run.workload.precision == "fp16"]
    of_all = tuple(_rows(replace(run, group="all in AMP") for run in half))
    return [
        ScoreTable(
            title="Training of convolutional networks on one GPU, as NVIDIA published it",
            columns=COLUMNS,
            rows=(*of_nvidia, *of_all),
            notes=(
                "Off by: the median miss, too long and too short alike; in the last two columns of what was learned.",
            ),
        ),
        ScoreTable(
            title="Training of ResNet-50 with channels first, as Lambda published it",
            columns=COLUMNS,
            rows=tuple(_rows(lambda_runs(data))),
        ),
        _gradients(data),
        _layouts(data),
    ]


def _gradients(data: DataFolder) -> ScoreTable:
    """Return what both gradients of single convolutions take, as a multiple of the forward pass."""
    table = data.read(DEEPBENCH)
    table = table[table.c > IMAGE_CHANNELS].assign(
        backward_ms=lambda one: one.bwd_inputs_ms.astype(float) + one.bwd_params_ms
    )
    lines: list[tuple[Cell, ...]] = []
    for (gpu, precision), rows in table.groupby(["gpu", "precision"]):
        each = (rows.backward_ms / rows.fwd_ms).quantile([0.1, 0.5, 0.9])
        lines.append((f"{gpu}, {precision}", len(rows), rows.backward_ms.sum() / rows.fwd_ms.sum(), *each))
    return ScoreTable(
        title="Gradients of single convolutions over their forward pass, as DeepBench measured them",
        columns=("GPU, precision", "n", "all together", "10 %", "median", "90 %"),
        rows=tuple(lines),
        notes=("A P100 has no tensor cores, and cuDNN's kernels for its half precision are slow.",),
    )


def _layouts(data: DataFolder) -> ScoreTable:
    """Return how far timm's runs with channels last are off, read as such and as if the channels came first."""
    zoo, rows = load_zoo(), left_out_rows(DataFolder(data.folder, is_sealed=True), load_zoo()).rows
    errors: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.workload.layout == FIRST or is_sealed(row.family):
            continue
        graph = graph_as_measured(row, zoo)
        ratios = [
            WorkloadAnalysis(graph, workload).step_time_s([row.gpu])[0].value / row.measured_s
            for workload in (row.workload, replace(row.workload, layout=FIRST))
        ]
        errors.setdefault(row.workload.mode, []).append((abs(ratios[0] - 1), abs(ratios[1] - 1)))
    lines: list[tuple[Cell, ...]] = []
    for mode, of_mode in sorted(errors.items()):
        last, first = 100 * np.array(of_mode).T
        lines.append((mode, len(of_mode), *map(float, (last.mean(), np.median(last), first.mean(), np.median(first)))))
    return ScoreTable(
        title="timm's runs with channels last: families that are not sealed, all seen by the fit",
        columns=("mode", "n", "MAPE %", "median", "as channels first, MAPE %", "median"),
        rows=tuple(lines),
    )


main = command_of("half precision", tables, (PUBLISHED, LAMBDA, TIMM, DEEPBENCH), __file__)

if __name__ == "__main__":
    main()
