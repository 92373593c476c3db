"""What the gate costs, what its recorder costs, and what it does for requests beside training.

Run: .venv/bin/python bench/gate.py [--device cpu|cuda] [--seconds 20]

1. Overhead with nobody who serves: steps with the gate and without, alternated in one process. Goal: at most 2 %.
2. The recorder's overhead in a step against torch.profiler's, its table of operators included. Goal: a tenth.
3. Requests at random times beside training: each alone, then together without the gate and with it. Herald on a V100
   under MPS: a step takes 1.22 x as long, 2.5 x under plain MPS. On a GPU, start an MPS daemon first.

On the CPU the third part only shows that all of it runs: processes share cores there, not SMs.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gpusage.gate.busy_flags import BusyFlags
from gpusage.gate.recorder import Recorder
from gpusage.gate.training import Training

GOAL_OVERHEAD, GOAL_RECORDER = 0.02, 0.1
ROUNDS, STEPS = 40, 3
RATE_PER_S, LIMIT_RATIO = 10.0, 5.0
"""Herald's rate, and a limit in latencies alone."""


def main() -> int:
    """Print the three tables; exit with 1 where the overhead misses its goal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--side", choices=("serve", "train"))
    parser.add_argument("--gate", action="store_true")
    options = parser.parse_args()
    if options.side is not None:
        side = serve if options.side == "serve" else train
        print(*side(options.device, options.seconds, is_gated=options.gate), flush=True)
        return 0
    torch.set_num_threads(1)
    step = training_step(options.device)
    over = overhead(step)
    print(f"overhead with nobody who serves {over:+.2%} (goal: at most {GOAL_OVERHEAD:.0%})")
    recorder_s, profiler_s = recorders(step)
    print(f"a recorded step takes {recorder_s * 1e3:+.2f} ms more, a profiled one {profiler_s * 1e3:+.2f} ms more")
    print(f"the recorder's overhead over the profiler's: {recorder_s / profiler_s:.3f} (goal: at most {GOAL_RECORDER})")
    measure_together(options.device, options.seconds)
    return 0 if over <= GOAL_OVERHEAD else 1


def training_step(device: str) -> Callable[[], None]:
    """Return a step of a network of 60 layers, many small ones among them: where hooks would cost most."""
    torch.manual_seed(1)
    width = 32 if device == "cpu" else 256
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(20):
        layers += [
            torch.nn.Conv2d(width, width, 3, padding=1),
            torch.nn.BatchNorm2d(width),
            torch.nn.ReLU(inplace=True),
        ]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(4, 3, 24, 24, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    return step


def seconds_of(step: Callable[[], None]) -> float:
    """Return the seconds of a step, the least of a few: what else the machine does only adds."""
    spans = []
    for _ in range(STEPS):
        begun_s = time.perf_counter()
        step()
        spans.append(time.perf_counter() - begun_s)
    return min(spans)


def overhead(step: Callable[[], None]) -> float:
    """Return what the gate adds to a step while nobody serves, as a part of it: the median of alternated rounds."""
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        gate = Training(BusyFlags(Path(folder) / "flags"))
        for number in range(ROUNDS):
            spans = {}
            for is_gated in (number % 2 == 0, number % 2 == 1):
                if is_gated:
                    gate.begin()
                spans[is_gated] = seconds_of(step)
                gate.end()
            ratios.append(spans[True] / spans[False])
    return statistics.median(ratios) - 1


def recorders(step: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds that one recorded and one profiled step take more than a plain one, alternated."""

    def recorded() -> None:
        recorder = Recorder()
        recorder.start()
        step()
        recorder.stop()
        recorder.seconds()

    def profiled() -> None:
        with torch.profiler.profile(record_shapes=True) as profile:
            step()
        profile.key_averages(group_by_input_shape=True)

    rows = [[seconds_of(each) for each in (step, recorded, profiled)] for _ in range(ROUNDS // 4)]
    plain_s, recorder_s, profiler_s = (statistics.median(column) for column in zip(*rows, strict=True))
    return recorder_s - plain_s, profiler_s - plain_s


def measure_together(device: str, seconds: float) -> None:
    """Print latency and training's step time: each alone, then beside each other, without the gate and with it."""
    print(f"\n{'':10} {'p50 ms':>8} {'p99 ms':>8} {'within limit':>13} {'step ms':>8} {'step / alone':>13}")
    with tempfile.TemporaryDirectory() as folder:
        alone_s = float(_output_words(_start("train", device, seconds, folder))[0])
        p50_s, p99_s, *latencies = map(float, _output_words(_start("serve", device, seconds, folder)))
        limit_s = LIMIT_RATIO * p50_s
        _print_row("alone", (p50_s, p99_s, *latencies), limit_s, alone_s, alone_s)

        for name, is_gated in (("plain", False), ("gate", True)):
            trains, serves = (_start(side, device, seconds, folder, is_gated=is_gated) for side in ("train", "serve"))
            together_s = float(_output_words(trains)[0])
            _print_row(name, tuple(map(float, _output_words(serves))), limit_s, together_s, alone_s)


def _start(side: str, device: str, seconds: float, folder: str, *, is_gated: bool = False) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "--side", side, "--device", device, "--seconds", str(seconds)]
    words += ["--gate"] if is_gated else []
    environment = os.environ | {"GPUSAGE_GATE": str(Path(folder) / "gate")}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def _output_words(process: subprocess.Popen[str]) -> list[str]:
    return process.communicate()[0].split()


def _print_row(name: str, latencies: tuple[float, ...], limit_s: float, step_s: float, alone_s: float) -> None:
    p50_s, p99_s, *each_s = latencies
    within = sum(value <= limit_s for value in each_s) / max(len(each_s), 1)
    print(
        f"{name:10} {p50_s * 1e3:8.1f} {p99_s * 1e3:8.1f} {within:13.1%} {step_s * 1e3:8.1f} {step_s / alone_s:13.2f}"
    )


def train(device: str, seconds: float, *, is_gated: bool) -> tuple[float]:
    """Train for *seconds*; return the mean seconds of a step."""
    from gpusage.gate import give_way  # its folder is this side's own

    torch.set_num_threads(1)
    step = training_step(device)
    if is_gated:
        give_way()
    begun_s, count = time.monotonic(), 0
    while time.monotonic() < begun_s + seconds:
        step()
        count += 1
    return ((time.monotonic() - begun_s) / count,)


def serve(device: str, seconds: float, *, is_gated: bool) -> tuple[float, ...]:
    """Answer requests at random times for *seconds*; return median and 99th percentile of the latency, and each."""
    from contextlib import nullcontext  # of this side alone

    from gpusage.gate import request  # its folder is this side's own

    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval().to(device)
    inputs, chance, latencies = torch.randn(1, 64, 256, device=device), random.Random(3), []
    arrival_s = time.monotonic()
    end_s = arrival_s + seconds
    while (arrival_s := arrival_s + chance.expovariate(RATE_PER_S)) < end_s:
        time.sleep(max(0.0, arrival_s - time.monotonic()))
        with request() if is_gated else nullcontext(), torch.no_grad():
            model(inputs).cpu()
        latencies.append(time.monotonic() - arrival_s)
    ordered = sorted(latencies)
    return (statistics.median(ordered), ordered[int(0.99 * len(ordered))], *ordered)


if __name__ == "__main__":
    sys.exit(main())
