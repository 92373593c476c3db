"""Measured step times in one form: which model, how it ran, on which GPU, and how long a step took.

What each source's caveats ask for:

- timm: the newest campaign of each GPU, eager, NCHW, AMP, and an older one where another GPU's newest is as old, so
  that speed-ups compare one release of torch; training only of torch 1.12 (the newest there is). From torch 2.9 on its
  benchmark joined branches and normalizations first: see `zoo.recipes.timm_fused_models`. Some campaigns normalized in
  half precision: see `fast_norm`.
- torchvision: only the files of 50 iterations and batch 12 (``_1_gpus_``), which one campaign measured in January 2021;
  fp64 is left out. The batch is copied from pageable memory in every step, at `COPY_BYTES_PER_S`.
- NeuSight's models: NVIDIA, one GPU, unfused; fp32 without TF32, forward and backward without an update.
- Gavel, Zeus and Sia measure the loader as well: they are scored, never fitted.
- gpusage profile: jobs that had the GPU to themselves; each table is a campaign.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.devices.precisions import FLOAT_BYTES
from gpusage_hooks.types import Gpu, Layout, Mode, ModelGraph, Precision, Workload
from gpusage_lab.learning.measured_graphs import FIRST_RELEASE, GPUS, as_computed_by, with_fast_norm
from gpusage_lab.learning.profiled import profiled
from gpusage_lab.learning.splits import family_of, is_sealed
from gpusage_lab.measurements.tables import DataFolder, Table
from gpusage_planning.zoo import Zoo


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One measurement.

    Attributes:
        key: Of the zoo.
        family: Models of one family are never on both sides of a split.
        campaign: What was measured together: one host, one version of the libraries.
        release: Of the libraries, where a source has more than one.
        copy_s: What the measurement adds that no prediction of ours counts: the batch's way from the host.
    """

    key: str
    family: str
    source: str
    campaign: str
    workload: Workload
    gpu: Gpu
    measured_s: float
    release: str = ""
    copy_s: float = 0.0


TIMM_DEVICES = {
    "RTX3090": "rtx-3090",
    "RTX4090": "rtx-4090",
    "RTX5090": "rtx-5090",
    "RTXPRO6000MaxQ": "rtx-pro-6000-max-q",
}
TIMM_PRECISIONS: Mapping[str, Precision] = {"amp": "fp16", "amp_bf16": "bf16", "bf16": "bf16"}
TIMM_LAYOUTS: Mapping[str, Layout] = {"nchw": "channels_first", "nhwc": "channels_last"}
FIRST_FUSED = 291
"""The release from which on timm's benchmark made models ready for inference, as fewer weights than before show."""
TORCHVISION_FILES: Mapping[str, str] = {
    "results/2080ti(2)/GeForce RTX 2080 Ti_1_gpus_": "rtx-2080-ti",
    "results/TITANXP/TITAN Xp_1_gpus_": "titan-xp",
    "results/TitanRTX/TITAN RTX_1_gpus_": "titan-rtx",
    "results/dgx-a100/A100-SXM4-40GB_1_gpus_": "a100-sxm4-40gb",
}
TORCHVISION_BATCH = 12
TORCHVISION_PRECISIONS: Mapping[str, Precision] = {"fp32": "fp32", "fp16": "fp16-pure"}
"""Its models are turned to half precision as a whole, without autocast."""
TORCHVISION_ACCUMULATE = 1000
"""Its training sets gradients to zero and adds new ones to them, and never updates a weight."""
COPY_BYTES_PER_S = 2.5e9
"""By what fp32 takes longer than fp16 on the A100 for models that the host decides: 1.5 ms for 3.6 MB."""
NEUSIGHT_DEVICES = {
    "NVIDIA_A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA_A100-PCIE-80GB": "a100-pcie-80gb",
    "NVIDIA_A100_80GB_PCIe": "a100-pcie-80gb",
    "NVIDIA_A100-SXM4-40GB": "a100-sxm4-40gb",
    "NVIDIA_H100_80GB_HBM3": "h100-sxm5-80gb",
    "NVIDIA_H100_PCIe": "h100-pcie-80gb",
    "NVIDIA_L4": "l4",
    "Tesla_P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla_P4": "p4",
    "Tesla_T4": "t4",
    "Tesla_V100-PCIE-32GB": "v100-pcie-32gb",
}


def step_rows(data: DataFolder, zoo: Zoo) -> list[StepRow]:
    """Return every row whose model is in the zoo, in the order of the files."""
    return [row for row in _all_rows(data, zoo) if row.key in zoo]


def row_counts(data: DataFolder, zoo: Zoo) -> Counter[str]:
    """Return how many rows each source has, those of models without a card too."""
    return Counter(row.source for row in _all_rows(data, zoo))


def left_out(data: DataFolder, zoo: Zoo) -> str:
    """Return, for people, how many rows are left out, and why."""
    count = sum(row.key not in zoo for row in _all_rows(data, zoo))
    table = data.read("timm_benchmark.csv")
    others = len(table) - len(eager_rows(table))
    ours = profiled(data, zoo).note
    reasons = f"{count} rows of models without a card, {others} of timm's other campaigns and settings"
    return f"{reasons}; of gpusage profile {ours}" if ours else reasons


def _all_rows(data: DataFolder, zoo: Zoo) -> list[StepRow]:
    rows = (*_timm(data, zoo), *_torchvision(data), *_neusight(data), *_profiled(data, zoo))
    return [row for row in rows if not (data.is_sealed and is_sealed(row.family))]


def eager_rows(table: Table) -> Table:
    """Return timm's rows of the releases that are some GPU's newest in a mode: eager, AMP, NCHW, no processors."""
    chosen = table[
        (table.precision == "amp")
        & (table.memory_layout == "nchw")
        & (table.torch_compile == 0)
        & table.device.isin(list(TIMM_DEVICES))
    ]
    newest = set(
        chosen.groupby(["mode", "device"])
        .torch_version.max()
        .reset_index()[["mode", "torch_version"]]
        .agg(tuple, axis=1)
    )
    chosen = chosen[[pair in newest for pair in zip(chosen["mode"], chosen.torch_version, strict=True)]]
    return chosen.drop_duplicates(["mode", "device", "torch_version", "model", "img_size_px"])


def _timm(data: DataFolder, zoo: Zoo) -> Iterator[StepRow]:
    for row in eager_rows(data.read("timm_benchmark.csv")).to_dict("records"):
        yield timm_row(row, zoo)


def timm_row(row: Mapping[str, Any], zoo: Zoo, setting: str = "") -> StepRow:
    """Return a row of timm's table; *setting* says what its source is called beside its mode."""
    model, module = f"{row['model']}@{row['img_size_px']:.0f}", row["timm_module"]
    fused = f"timm-fused:{model}"
    return StepRow(
        key=fused if row["torch_version"] >= FIRST_FUSED and fused in zoo else f"timm:{model}",
        family=module if isinstance(module, str) else family_of(row["model"]),
        source=f"timm {row['mode']}{setting}",
        campaign=f"timm {row['mode']} {row['device']} {row['torch_version']}{setting}",
        workload=Workload(
            batch_size=int(row["batch_size"]),
            mode=row["mode"],
            precision=TIMM_PRECISIONS[row["precision"]],
            optimizer="sgd",
            layout=TIMM_LAYOUTS[row["memory_layout"]],
        ),
        gpu=builtin_catalogue().find(TIMM_DEVICES[row["device"]]),
        measured_s=row["batch_size"] / row["samples_per_s"],
        release=str(row["torch_version"]),
    )


def graph_as_measured(row: StepRow, zoo: Zoo) -> ModelGraph:
    """Return the graph of *row* as its campaign computed it."""
    graph = as_computed_by(zoo.graph(row.key), row.release)
    has_option = row.gpu.name in GPUS and row.release and int(row.release) >= FIRST_RELEASE
    return with_fast_norm(graph, row.family, int(row.release)) if has_option else graph


def _torchvision(data: DataFolder) -> Iterator[StepRow]:
    table = data.read("torchvision_gpu_bench.csv")
    for start, gpu in TORCHVISION_FILES.items():
        chosen = table[
            table.source_path.str.startswith(start, na=False) & table.precision.isin(list(TORCHVISION_PRECISIONS))
        ]
        for row in chosen.itertuples():
            yield StepRow(
                key=f"torchvision:{row.model}@224",
                family=family_of(row.model),
                source=f"torchvision {row.mode}",
                campaign=f"torchvision {gpu}",
                workload=torchvision_workload(row.mode, row.precision),
                gpu=builtin_catalogue().find(gpu),
                measured_s=row.step_time_median_ms / 1e3,
                copy_s=torchvision_copy_s(row.precision),
            )


def torchvision_workload(mode: Mode, precision: str) -> Workload:
    """Return what one GPU computes in a step of the campaign in *mode* and its own word for a *precision*."""
    return Workload(
        batch_size=TORCHVISION_BATCH,
        mode=mode,
        precision=TORCHVISION_PRECISIONS[precision],
        optimizer="none",
        accumulate=TORCHVISION_ACCUMULATE if mode == "train" else 1,
    )


def torchvision_copy_s(precision: str) -> float:
    """Return the seconds in which the host copies one GPU's pictures."""
    return TORCHVISION_BATCH * 3 * 224 * 224 * FLOAT_BYTES[TORCHVISION_PRECISIONS[precision]] / COPY_BYTES_PER_S


def _neusight(data: DataFolder) -> Iterator[StepRow]:
    for row in _unfused(data).itertuples():
        yield StepRow(
            key=f"neusight:{row.model}@{row.seq_len}",
            family=row.model,
            source="neusight",
            campaign="neusight",
            workload=Workload(batch_size=int(row.batch_size), mode=row.mode, precision="fp32", optimizer="none"),
            gpu=builtin_catalogue().find(NEUSIGHT_DEVICES[row.device]),
            measured_s=row.measured_e2e_ms / 1e3,
        )


def _unfused(data: DataFolder) -> Table:
    table = data.read("neusight_models.csv")
    return table[table.option.isna() & table.device.isin(list(NEUSIGHT_DEVICES))]


def neusight_note(data: DataFolder, zoo: Zoo) -> str:
    """Return, for people, how far NeuSight's own published predictions of the same rows miss."""
    chosen = [row for row in _unfused(data).itertuples() if f"neusight:{row.model}@{row.seq_len}" in zoo]
    if not all(hasattr(row, "pred_neusight_ms") for row in chosen):
        return "NeuSight's own predictions of its rows are not in the folder."
    missed = [abs(row.pred_neusight_ms / row.measured_e2e_ms - 1) for row in chosen]
    return (
        f"NeuSight's own predictions of its {len(chosen)} rows, which are of fp32, miss by {100 * mean(missed):.1f} %."
    )


def _profiled(data: DataFolder, zoo: Zoo) -> Iterator[StepRow]:
    for run in profiled(data, zoo).runs:
        if run.is_alone and "step_time_s" in run.figures:
            yield StepRow(
                key=run.key,
                family=run.family,
                source=run.source,
                campaign=f"profile {run.campaign}",
                workload=run.workload,
                gpu=run.gpu,
                measured_s=run.figures["step_time_s"],
            )


def families(rows: Iterable[StepRow]) -> list[str]:
    """Return each row's family."""
    return [row.family for row in rows]
