"""`gpusage calibrate`: the eager steps of three small models on this host against what is predicted of a usual one."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from math import isnan
from pathlib import Path
from typing import Any

import click
import numpy as np

from gpusage.boundary.atomic_file import atomic_write
from gpusage.cli import tables
from gpusage.decisions.advisor import make_advisor
from gpusage.devices.calibration import SCHEMA, checked
from gpusage.graphs.torch.libraries import import_library
from gpusage.graphs.torch.module import graph_from_module
from gpusage.predictors.analysis import analyze
from gpusage.predictors.times.step_time import host_factor_of
from gpusage_hooks.errors import RequestError
from gpusage_hooks.types import Workload

Torch = Any
"""The module torch, or a module of it: nothing has types without it."""
ROUNDS, ROUND_S, WARM_UP_S = 5, 2.0, 1.0
MOST_APART = 1.15
"""The longest round over the shortest: an idle host repeats itself."""
PROBES: Mapping[str, tuple[tuple[int, ...], int, Callable[[Torch], tuple[Torch, ...]]]] = {
    "convolutions": ((32, 32, 32), 256, lambda nn: (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())),
    "perceptron": ((512,), 8192, lambda nn: (nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU())),
    "transformer": ((64, 256), 256, lambda nn: (nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True),)),
}
"""By model: the sizes of a sample; a batch with which the GPU decides the step, as with one sample the host does; the
layers of a block, of which it has `DEPTH`.
"""
DEPTH = 16


def calibrate(*, device: str, gpu: str, output: Path | None, as_json: bool) -> None:
    """Measure, and write the file of `gpusage.devices.calibration`."""
    torch, made, is_trial = import_library("torch"), make_advisor(), device == "cpu"
    reading = made.hooks.read_gpu(os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0])
    if not is_trial and (not torch.cuda.is_available() or (reading and reading.process_memory_bytes)):
        got = "one with other processes" if torch.cuda.is_available() else "none"
        message = f"Device 'cuda' must be an idle GPU; got {got}. Run it alone on a node with a GPU."
        raise RequestError(message)

    # Steps are compared in plain fp32, as predicted.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    row = made.catalogue.find(gpu or ("v100" if is_trial else torch.cuda.get_device_name()))
    hosts, rates, models = [], [], {}
    for name, (sample, large, layers) in PROBES.items():
        module = torch.nn.Sequential(*(one for _ in range(DEPTH) for one in layers(torch.nn))).to(device)
        graph = graph_from_module(module, (torch.zeros(2, *sample, device=device),), name=name)
        for batch in (1, 2 if is_trial else large):
            click.echo(f"gpusage calibrate: {'a trial, ' if is_trial else ''}{name}, batch {batch}", err=True)
            times_s = _times_s(torch, module, torch.randn(batch, *sample, device=device))
            if max(times_s) > MOST_APART * min(times_s) and not is_trial:
                got = f"{1e3 * min(times_s):.3g} to {1e3 * max(times_s):.3g} ms"
                message = f"A step of model {name!r} must take as long each time; got {got}. Run it on an idle node."
                raise RequestError(message)
            analysis = analyze(graph, Workload(batch_size=batch, mode="train", optimizer="sgd"))
            timing = analysis.timing([row])
            predicted_s, busy_s = float(timing.step_s[0]), float(timing.busy_s[0])
            step_s, count = float(np.median(times_s)), float(analysis.kernels.counts.sum())
            models[f"{name}, batch {batch}"] = {"step_s": step_s, "predicted_s": predicted_s, "kernels": count}
            if batch == 1:
                hosts.append(host_factor_of(step_s, predicted_s, busy_s))
            else:
                rates.append(step_s / predicted_s)

    today = date.today().isoformat()  # noqa: DTZ011 - the day here
    about = {"schema": SCHEMA, "gpu": row.board, "device": device, "host": platform.node(), "measured_on": today}
    shown = {**host_figures(hosts), "gpu_factor": float(np.median(rates))}
    document = {**about, **shown, "torch": torch.__version__, "cuda": torch.version.cuda, "models": models}
    if not is_trial:
        checked(document)
    path = output or Path(f"{row.name}.calibration.json")
    atomic_write(path, tables.json_text(document))
    if as_json:
        tables.print_json(document)
        return
    sentences = (
        f"This host takes {shown['host_factor']:.2f} times as long as usual to launch kernels, and {row.name} "
        f"{shown['gpu_factor']:.2f} times as long as by its row. Name the file in gpusage.toml: [gpus] calibration."
    )
    tables.show(f"{'A trial: predictions do not read it.' if is_trial else sentences} Written to {path}.")


def host_figures(hosts: Sequence[float]) -> dict[str, float]:
    """Return the factor of *hosts*, one by each model, and their spread; NaN is of one whose GPU hides the host.

    Raises:
        RequestError: Fewer than two models show the host.
    """
    shown = [each for each in hosts if not isnan(each)]
    if len(shown) < 2:
        message = f"Two models' steps must wait for their host; got {len(shown)}. Leave this GPU without a calibration."
        raise RequestError(message)
    return {"host_factor": float(np.median(shown)), "host_spread": max(shown) / min(shown)}


def _times_s(torch: Torch, module: Torch, inputs: Torch) -> list[float]:
    """Return the mean seconds of a training step in each round, after a warm-up; a trial has one round, of one step."""
    optimizer, times_s = torch.optim.SGD(module.parameters(), lr=1e-4), []
    for round_s in (WARM_UP_S, *[ROUND_S] * (ROUNDS if inputs.is_cuda else 1)):
        began, count = time.perf_counter(), 0
        while not count or (inputs.is_cuda and time.perf_counter() - began < round_s):
            module(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            count += 1
        if inputs.is_cuda:
            torch.cuda.synchronize()
        times_s.append((time.perf_counter() - began) / count)
    return times_s[1:]
