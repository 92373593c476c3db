"""How long a command takes from nothing: median of 10 cold processes, as a ratio to `python -c pass` in the same run.

    .venv/bin/python bench/cold_start.py [MODEL.onnx]

The goal is 300 ms for `gpusage predict`, the reading of an ONNX file included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

RUNS = 10
GOAL_S = 0.300
MODEL = Path(__file__).parents[1] / "examples" / "models" / "resnet50.onnx"
GPUSAGE = (sys.executable, "-m", "gpusage.cli")


def main(model: str) -> None:
    """Print the table, and whether `gpusage predict` reaches the goal on this machine, busy as it is."""
    commands = {
        "python -c pass": (sys.executable, "-c", "pass"),
        "gpusage --version": (*GPUSAGE, "--version"),
        "gpusage predict": (*GPUSAGE, "predict", model, "--batch", "64"),
        "gpusage predict --json": (*GPUSAGE, "predict", model, "--batch", "64", "--json"),
        "gpusage card": (*GPUSAGE, "card", model),
    }
    with tempfile.TemporaryDirectory() as folder:
        # An installed package has its bytecode; a checkout run under PYTHONDONTWRITEBYTECODE gets it here.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        times_s: dict[str, list[float]] = {name: [] for name in commands}
        for run in range(RUNS + 1):  # the first one only warms bytecode and page cache
            for name, command in commands.items():
                took_s = measure_s(command, environment)
                if run:
                    times_s[name].append(took_s)
    medians_s = {name: statistics.median(times) for name, times in times_s.items()}
    floor_s = medians_s["python -c pass"]
    print(f"{'command':24}{'median':>10}{'fastest':>10}{'ratio':>8}")
    for name, median_s in medians_s.items():
        print(f"{name:24}{median_s * 1e3:7.0f} ms{min(times_s[name]) * 1e3:7.0f} ms{median_s / floor_s:7.1f}x")
    reached = medians_s["gpusage predict"] <= GOAL_S
    print(f"goal for gpusage predict, {GOAL_S * 1e3:.0f} ms: {'reached' if reached else 'missed'}")


def measure_s(command: Sequence[str], environment: dict[str, str]) -> float:
    """Return the seconds that *command* takes from start to end."""
    start_s = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(MODEL))
