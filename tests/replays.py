"""`bench/replay.py`, short, on invented measurements."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

COMMAND = Path(__file__).parents[1] / "bench" / "replay.py"
MODELS = ("NeuMF", "TD3", "MobileNetV2")


def check_replay(folder: Path, manager: str, count: int) -> None:
    """Replay *count* jobs on a new cluster of *manager*: each must be done once in either state, and be on the page."""
    command = [sys.executable, COMMAND, "--manager", manager, "--data", written(folder), "--repetitions", 1]
    short = ["--longest", 3, "--compression", 120, "--jobs", count, "--json"]
    result = subprocess.run([*map(str, [*command, *short])], capture_output=True, text=True, check=False, timeout=900)
    assert result.returncode == 0, result.stderr
    (repetition,) = json.loads(result.stdout)["repetitions"]
    for state in ("off", "on"):
        done = [stay["job"] for stay in repetition["stays"][state] if stay["ending"] == "done"]
        assert sorted(done) == [*range(count)]


def written(folder: Path) -> Path:
    """Write invented measurements in the form of Lucid's, and return their folder."""
    alone = [
        {
            "model": model,
            "batch_size": 64,
            "amp": 0,
            "speed_samples_per_s": 100,
            "gpu_util_pct": 20,
            "gmem_util_pct": 9,
            "gmem_MiB": 2000,
        }
        for model in MODELS
    ]
    pairs = [
        {
            **{f"{key}{number}": value for number, model in enumerate(pair, 1) for key, value in row(model).items()},
            "gpu_util_pct": 40,
        }
        for pair in combinations(MODELS, 2)
    ]
    for name, rows in (("lucid_solo.csv", alone), ("lucid_pairs.csv", pairs)):
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


def row(model: str) -> dict[str, object]:
    return {"model": model, "gpu_num": 1, "batch_size_": 64, "amp": 0, "norm_speed_": 0.9}
