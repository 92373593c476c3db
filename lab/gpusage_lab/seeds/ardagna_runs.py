"""Measured training steps by batch size, number of GPUs and a GPU's peak, in one form, with what ours says of each.

Gavel, Sia and Zeus time whole steps, with loader and exchange of gradients, and no predictor of ours is fitted on
them. The shipped step time is fitted on torchvision's rows on one GPU: for them the step time is refitted without the
A100s and without the deepest network of each kind, as these are what the regressions are asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpusage.devices.catalogue import builtin_catalogue
from gpusage.predictors.analysis import WorkloadAnalysis
from gpusage.predictors.parallel.data_parallel import gradient_traffic, waiting_s
from gpusage.predictors.times.efficiency import Efficiency
from gpusage.predictors.times.step_time import timing_with
from gpusage_hooks.units import TERA
from gpusage_lab.learning.step_rows import TORCHVISION_PRECISIONS, torchvision_copy_s, torchvision_workload
from gpusage_lab.learning.step_samples import measurements, refit
from gpusage_lab.measurements.tables import DataFolder
from gpusage_planning.named_jobs import GAVEL, LUCID, NamedJob, workload
from gpusage_planning.zoo import Zoo, load_zoo

SIA_APPS = {"bert": LUCID["BERT"], "cifar10": GAVEL["ResNet-18"], "imagenet": GAVEL["ResNet-50"], "ncf": LUCID["NeuMF"]}
SIA_GPUS = {
    "T4 (g4dn.12xlarge)": "t4",
    "V100 (ND40rs_v2)": "v100-sxm2-32gb",
    "A100-40GB (DGX-A100)": "a100-sxm4-40gb",
    "RTX 2080Ti": "rtx-2080-ti",
    "Quadro RTX 6000": "quadro-rtx-6000",
}
GAVEL_GPUS = {"K80": "k80", "P100": "p100-pcie-16gb", "V100": "v100-sxm2-16gb"}
ZEUS_NETWORKS = {
    ("imagenet", "resnet50"): (GAVEL["ResNet-50"], 1_281_167),
    ("movielens-1m", "ncf"): (LUCID["NeuMF"], 4_970_845),
    ("squad", "bert_base_uncased"): (LUCID["BERT"], 88_524),
}
"""The graph, and about how many samples an epoch has, which no error in percent depends on."""
ZEUS_GPUS = {"P100": "p100-pcie-16gb", "V100": "v100-pcie-32gb", "RTX6000": "quadro-rtx-6000", "A40": "a40"}
TORCHVISION_GPUS = {
    "TITAN Xp": "titan-xp",
    "GeForce RTX 2080 Ti": "rtx-2080-ti",
    "TITAN RTX": "titan-rtx",
    "A100-SXM4-40GB": "a100-sxm4-40gb",
}
TORCHVISION_ITERATIONS = 50
TIMM_SHARE = 6
DEEPEST = ("torchvision:resnet152@", "torchvision:densenet201@")
INNER_MODULES = {
    "resnet50": 16,
    "resnet101": 33,
    "resnet152": 50,
    "densenet121": 58,
    "densenet169": 82,
    "densenet201": 98,
}
"""Residual blocks, and layers of the dense blocks; the networks of one kind differ in nothing else."""


class MeasuredRun(NamedTuple):
    """One measured configuration; *batch_size* is that of one GPU, *modules* None where the network is of no series.

    *ours_s* comes of a predictor that was not fitted on any such run: see the module.
    """

    source: str
    network: str
    gpu: str
    gpu_count: int
    batch_size: int
    peak_tflop_per_s: float
    step_s: float
    ours_s: float
    modules: int | None = None


def runs(data: DataFolder) -> list[MeasuredRun]:
    """Return the runs of all sources whose file is there."""
    sources = {
        "gavel_solo.csv": gavel,
        "sia_step_times.csv": sia,
        "zeus_power_time.csv": _zeus,
        "torchvision_gpu_bench.csv": _torchvision,
    }
    return [run for file, load in sources.items() if file in data for run in load(data)]


def gavel(data: DataFolder) -> Iterator[MeasuredRun]:
    """Yield Gavel's runs of 2020 on one host; a job on several GPUs counts each one's steps."""
    rows = data.read("gavel_solo.csv")
    rows = rows[(rows["source_file_tag"] == "simulation_2020") & (rows["consolidated"] == "yes")]
    for row in rows[(rows["throughput_steps_per_s"] > 0) & rows["batch_size"].notna()].to_dict("records"):
        step_s = row["num_gpus"] / row["throughput_steps_per_s"]
        gpu, count = GAVEL_GPUS[row["gpu"]], int(row["num_gpus"])
        yield _run("Gavel", (row["model"], GAVEL[row["model"]]), gpu, (count, int(row["batch_size"])), step_s)


def sia(data: DataFolder) -> Iterator[MeasuredRun]:
    """Yield Sia's placements on one host."""
    rows = data.read("sia_step_times.csv")
    rows = rows[(rows["kind"] == "placements") & rows["app"].isin(SIA_APPS) & rows["gpu"].isin(SIA_GPUS)]
    for row in rows[rows["placement"] < 10].to_dict("records"):  # one digit is one host
        settings = int(row["placement"]), int(row["local_batch_size"])
        yield _run("Sia", (row["app"], SIA_APPS[row["app"]]), SIA_GPUS[row["gpu"]], settings, row["step_time_s"])


def _zeus(data: DataFolder) -> Iterator[MeasuredRun]:
    """Yield Zeus's runs at the full power limit, the mean over optimizers."""
    rows = data.read("zeus_power_time.csv")
    rows = rows[rows["power_limit_W"] == rows.groupby("gpu")["power_limit_W"].transform("max")]
    means = rows.groupby(["gpu", "dataset", "network", "batch_size"], as_index=False)["time_per_epoch_s"].mean()
    for row in means.to_dict("records"):
        known = ZEUS_NETWORKS.get((row["dataset"], row["network"]))
        if known:
            step_s = row["time_per_epoch_s"] * row["batch_size"] / known[1]
            yield _run("Zeus", (row["network"], known[0]), ZEUS_GPUS[row["gpu"]], (1, int(row["batch_size"])), step_s)


def _run(source: str, network: tuple[str, NamedJob], gpu: str, settings: tuple[int, int], step_s: float) -> MeasuredRun:
    name, job = network
    peak = builtin_catalogue().find(gpu).peak_flop_per_s["fp32"] / TERA
    return MeasuredRun(source, name, gpu, *settings, peak, float(step_s), ours(job, gpu, *settings))


def ours(job: NamedJob, gpu: str, gpu_count: int, batch_size: int) -> float:
    """Return the seconds that our predictor says, with the exchange of gradients."""
    work = replace(workload(job, batch_size), gpus=gpu_count)
    there = WorkloadAnalysis(load_zoo().graph(job.key), work).on([builtin_catalogue().find(gpu)])
    return float(there.timing.step_s[0]) + there.waiting_s[0]


def extrapolating_efficiency(data: DataFolder) -> Efficiency:
    """Return the step time's efficiencies, learned without A100s and `DEEPEST`, and from a sixth of timm's models."""
    chosen = {key: card for key, card in load_zoo().cards.items() if _is_in_training(key)}
    rows = measurements(data, Zoo(chosen))
    left_out = tuple(
        sorted({gpu.name for gpu in builtin_catalogue() if gpu.name.startswith("a100") and not gpu.parent_gpu})
    )
    return refit(rows, np.arange(len(rows.rows)), without=left_out).efficiency


def _is_in_training(key: str) -> bool:
    if key.startswith("timm:"):
        return int(hashlib.sha256(key.encode()).hexdigest()[:8], 16) % TIMM_SHARE == 0
    return key.startswith(("neusight:", "torchvision:")) and not key.startswith(DEEPEST)


def _torchvision(data: DataFolder) -> Iterator[MeasuredRun]:
    """Yield the campaign of 2021: training, 12 images a GPU, which the host copies in every step."""
    rows = data.read("torchvision_gpu_bench.csv")
    chosen = (rows["num_iterations"] == TORCHVISION_ITERATIONS) & (rows["mode"] == "train")
    chosen &= rows["precision"].isin(list(TORCHVISION_PRECISIONS)) & rows["gpu"].isin(list(TORCHVISION_GPUS))
    efficiency = extrapolating_efficiency(data)
    for row in rows[chosen].drop_duplicates(["gpu", "num_gpus", "precision", "model"]).to_dict("records"):
        gpu = builtin_catalogue().find(TORCHVISION_GPUS[row["gpu"]])
        graph, count = load_zoo().graph(f"torchvision:{row['model']}@224"), int(row["num_gpus"])
        work = torchvision_workload("train", row["precision"])
        analysis = WorkloadAnalysis(graph, work)
        alone_s = float(timing_with(efficiency, analysis.kernels, [gpu], work.precision).step_s[0])
        of_all = replace(work, gpus=count, accumulate=1)  # DataParallel gathers the gradients of every pass
        waits_s = waiting_s(gradient_traffic(analysis.lowering, of_all), alone_s, of_all, gpu)
        yield MeasuredRun(
            source=f"torchvision {row['precision']}",
            network=row["model"],
            gpu=gpu.name,
            gpu_count=count,
            batch_size=work.batch_size,
            peak_tflop_per_s=gpu.peak_flop_per_s["fp32"] / TERA,
            step_s=row["step_time_median_ms"] / 1e3,
            ours_s=alone_s + count * torchvision_copy_s(row["precision"]) + waits_s,
            modules=INNER_MODULES.get(row["model"]),
        )
