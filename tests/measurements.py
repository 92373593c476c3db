"""A data folder of a few invented rows in the forms of the public measurements: for the machinery, not for figures."""

from __future__ import annotations

import csv
import gzip
import io
from itertools import combinations
from pathlib import Path
from typing import Any

TIMM = (("resnet18", "resnet"), ("vgg11", "vgg"), ("mobilenetv2_100", "efficientnet"), ("densenet121", "densenet"))
TORCHVISION = ("resnet18", "mobilenet_v2", "squeezenet1_0")
GAVEL = (("ResNet-18", 16), ("ResNet-18", 64), ("LM", 5), ("LM", 20), ("Recommendation", 512), ("CycleGAN", 1))
Rows = list[dict[str, Any]]


def write_measurements(folder: Path) -> Path:
    """Write every file that training reads into *folder*, and return it."""
    _write(folder / "timm_benchmark.csv", _timm())
    _write(folder / "torchvision_gpu_bench.csv", _torchvision())
    _write(folder / "neusight_models.csv", _neusight())
    _write(folder / "neusight_ops.csv.gz", _operators())
    _write(folder / "deepbench_gemm.csv", _products())
    _write(folder / "gpumemnet_timm_memory.csv", _peaks())
    _write(folder / "timm_static_features.csv", [{"model": name, "img_size_px": 224} for name, _ in TIMM])
    _write(folder / "gpumemnet_mlp_step1.csv", _perceptrons())
    _write(folder / "gpumemnet_cnn.csv", _convolutional())
    _write(folder / "gavel_pairs.csv", _pairs())
    _write(folder / "rapp_mps_percent.csv.gz", _percentages())
    _write(folder / "parvagpu_mig.csv", _slices())
    _write(folder / "miso_a100_mig.csv", _trained_slices())
    return folder


def _write(path: Path, rows: Rows) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _timm() -> Rows:
    rate = 800.0
    rows = []
    for device, torch_version in (("RTX3090", 240), ("RTX4090", 291), ("RTX4090", 240), ("RTX5090", 291)):
        for name, module in TIMM:
            rate *= 1.07
            rows.append(
                {"mode": "infer", "precision": "amp", "memory_layout": "nchw", "torch_version": torch_version}
                | {"device": device, "torch_compile": 0, "model": name, "timm_module": module, "img_size_px": 224}
                | {"batch_size": 256, "samples_per_s": rate}
            )
    return rows


def _torchvision() -> Rows:
    folders = {"TITANXP/TITAN Xp": 90.0, "dgx-a100/A100-SXM4-40GB": 40.0}
    return [
        {"source_path": f"results/{gpu}_1_gpus__{mode}.csv", "precision": precision, "mode": mode, "model": name}
        | {"step_time_median_ms": step_ms * (1 + place) / (2 if precision == "fp16" else 1)}
        for gpu, step_ms in folders.items()
        for mode in ("train", "infer")
        for precision in ("fp32", "fp16")
        for place, name in enumerate(TORCHVISION)
    ]


def _neusight() -> Rows:
    row = {"mode": "infer", "seq_len": 512, "batch_size": 8, "option": ""}
    times = {"Tesla_T4": 700.0, "Tesla_P4": 1100.0}
    return [{"device": name, "model": "bert_large", **row, "measured_e2e_ms": ms} for name, ms in times.items()]


def _operators() -> Rows:
    sizes = ("b", "m", "n", "k", "h", "c_in", "c_out", "kernel", "in_size", "stride", "pad")
    rows: Rows = []
    for device, factor in (("Tesla T4", 2.0), ("Tesla V100-PCIE-32GB", 1.0)):
        for size in (128, 512, 1024):
            linear = {"op": "linear", "b": 4, "m": size, "n": size, "k": size, "latency_ms": factor * size**2 / 1e6}
            add = {"op": "add", "b": size, "h": 4096, "latency_ms": factor * size / 1e4}
            rows += [dict.fromkeys(sizes, "") | {"device": device} | row for row in (linear, add)]
    return rows


def _products() -> Rows:
    gpus = (("T4", "fp32", 1), ("T4", "fp16_mixed", 4), ("P100", "fp16_mixed", 2), ("M40", "fp32", 1))
    return [
        {"gpu": gpu, "precision": precision, "m": size, "n": 128, "k": size, "time_ms": size**2 / 1e7 / speed}
        for gpu, precision, speed in gpus
        for size in (512, 2048)
    ]


def _peaks() -> Rows:
    return [
        {"model": name, "batch_size": batch, "max_gpu_memory_MiB": 2000 + 40 * batch, "quality": quality}
        | {"faketensor_after_backward_MiB": 500 + 30 * batch}
        for name, _ in TIMM
        for batch, quality in ((8, "ok"), (32, "ok"), (64, "ok"), (128, "decreasing_suspect_oom"))
    ]


def _network(config: str, layers: list[tuple[str, int, int]], batch: int, busy: float) -> dict[str, Any]:
    return {
        "config": f"{config}_batch:{batch}.out",
        "layers_type_activations_params": str(layers),
        "batch_size": batch,
        "max_gpu_memory_MiB": 1500 + batch,
        "avg_gpu_util_pct": busy,
        "avg_sm_active_frac": busy / 200,
    }


def _perceptrons() -> Rows:
    rows = []
    for number in range(32):
        arch, width = ("pyramid", "uniform")[number % 2], 256 * (1 + number % 8)
        layers = [("linear", width, 512 * width + width), ("ReLU", width, 0), ("linear", 8, width * 8 + 8)]
        rows.append(_network(f"input:512_output:8_arch:{arch}", layers, 16 * (1 + number), 10 + 2 * number))
    return rows


def _convolutional() -> Rows:
    rows = []
    for number in range(32):
        arch, channels = ("hourglass", "dense")[number % 2], 8 * (1 + number % 4)
        outputs = channels * 16 * 16
        layers = [("conv2d", outputs, channels * 28), ("batchnorm2d", outputs, 2 * channels), ("ReLU", outputs, 0)]
        layers += [("adaptive_avg_pool2d", channels, 0), ("linear", 4, channels * 4 + 4)]
        config = f"input_channels:3_arch:{arch}_input_size:16"
        rows.append({**_network(config, layers, 8 * (1 + number), 20 + 2 * number), "status": "SUCCESSFUL"})
    return rows


def _pairs() -> Rows:
    rows = []
    for number, ((first, batch_a), (second, batch_b)) in enumerate(combinations(GAVEL, 2)):
        rows.append(
            {"source_file_tag": "simulation_2020", "gpu": "V100", "model_a": first, "batch_size_a": batch_a}
            | {"model_b": second, "batch_size_b": batch_b, "norm_a": 0.5 + number / 40, "norm_b": 0.9 - number / 40}
            | {"usable": int(number > 0), "solo_a_steps_per_s": 5.0, "solo_b_steps_per_s": 5.0}
        )
    return rows


def _percentages() -> Rows:
    return [
        {"model": name, "batch_size": 8, "mps_percent": percent, "time_quota_percent": 100}
        | {"latency_ms": (5 + place) * max(60 / percent, 1.0)}
        for place, name in enumerate(TORCHVISION)
        for percent in (20, 50, 80, 90, 100)
    ]


def _slices() -> Rows:
    return [
        {"model": name, "mig_slices": slices, "batch_size": 32, "process_count": 1}
        | {"throughput_samples_per_s": 300.0 * slices, "latency_s": 1.0}
        for name in ("resnet50", "densenet121")
        for slices in (1, 2, 3, 4, 7)
    ]


def _trained_slices() -> Rows:
    times = {"1g.5gb": 0.6, "3g.20gb": 0.2, "7g.40gb": 0.14}
    return [
        {"mig_slice": name, "model": "cyclegan", "batch_size": 1, "iter_time_median_s": seconds}
        | {"sm_util_pct_a100_solo": 78.0, "mem_util_pct_a100_solo": 20.0}
        for name, seconds in times.items()
    ]
