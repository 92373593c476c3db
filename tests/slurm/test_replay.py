"""`bench/replay.py` on a real Slurm, short: every job runs on an emulated GPU, with gpusage and without."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm

COMMAND = Path(__file__).parents[2] / "bench" / "replay.py"
JOBS = 4
MODELS = ("NeuMF", "TD3", "MobileNetV2")


def written(folder: Path) -> Path:
    """Write invented measurements in the form of Lucid's, and return their folder."""
    alone = [
        {"model": model, "batch_size": 64, "amp": 0, "gpu_util_pct": 20, "gmem_util_pct": 9, "gmem_MiB": 2000}
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


@pytest.mark.usefixtures("slurm_release")
def test_every_job_runs_on_an_emulated_gpu_with_gpusage_and_without(tmp_path: Path) -> None:
    command = [sys.executable, COMMAND, "--data", written(tmp_path), "--jobs", JOBS, "--repetitions", 1]
    short = ["--longest", 3, "--compression", 120, "--json", "-o", tmp_path / "page.html"]
    result = subprocess.run([*map(str, [*command, *short])], capture_output=True, text=True, check=False, timeout=180)
    assert result.returncode == 0, result.stderr
    (repetition,) = json.loads(result.stdout)["repetitions"]
    for state in ("off", "on"):
        done = [stay["job"] for stay in repetition["stays"][state] if stay["ending"] == "done"]
        assert sorted(done) == [*range(JOBS)]
    assert (tmp_path / "page.html").read_text().count("<svg") == 4
