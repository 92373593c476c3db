"""How long a command takes from nothing: the fastest of 15 cold processes, as a ratio to `python -c pass`.

    .venv/bin/python bench/cold_start.py [MODEL.onnx]

All commands run in turns, so that what else the machine does slows each of them alike. `import numpy` is listed because
no prediction can take less.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

RUNS = 15
GOALS = {"gpusage --help": 8, "gpusage predict": 15}
MODEL = Path(__file__).parents[1] / "examples" / "models" / "resnet50.onnx"
GPUSAGE = str(Path(sys.executable).with_name("gpusage"))
FLOOR = "python -c pass"


def main(model: str) -> None:
    """Print the table, with the goals where there are some."""
    commands = {
        FLOOR: (sys.executable, "-c", "pass"),
        "python -c 'import numpy'": (sys.executable, "-c", "import numpy"),
        "gpusage --version": (GPUSAGE, "--version"),
        "gpusage --help": (GPUSAGE, "--help"),
        "gpusage predict --help": (GPUSAGE, "predict", "--help"),
        "gpusage predict": (GPUSAGE, "predict", model),
        "gpusage predict --json": (GPUSAGE, "predict", model, "--json"),
        "gpusage card": (GPUSAGE, "card", model),
        "gpusage job-card": (GPUSAGE, "job-card", "--", f"model={model},batch=64"),
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
    floor_s = min(times_s[FLOOR])
    print(f"{'command':26}{'fastest':>10}{'ratio':>8}{'goal':>7}")
    for name, times in times_s.items():
        ratio = min(times) / floor_s
        goal = GOALS.get(name)
        verdict = "" if goal is None else f"{goal:6}x  {'reached' if ratio <= goal else 'missed'}"
        print(f"{name:26}{min(times) * 1e3:7.0f} ms{ratio:7.1f}x{verdict}")


def measure_s(command: Sequence[str], environment: dict[str, str]) -> float:
    """Return the seconds that *command* takes from start to end."""
    start_s = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(MODEL))
