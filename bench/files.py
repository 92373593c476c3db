"""Which of our files one command and one submission pass through, in the order in which they are first called.

    .venv/bin/python bench/files.py [--list] [MODEL.onnx]

A file counts if one of its functions runs; imports do not count. The submission is `gpusage job-card` on the login
node, gpusaged's decision and its record, and the two Lua files of slurmctld and sbatch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gpusage
from daemon import started, submission_line
from gpusage.graphs.card.text import encode
from gpusage.service import client

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "examples" / "models" / "resnet50.onnx"
TRACED = str(Path(__file__).with_name("traced.py"))
LUA = ("plugins/slurm/gpusage_slurm/lua/gpusage_cli.lua", "plugins/slurm/gpusage_slurm/lua/gpusage.lua")
GOALS = {"gpusage predict": 50, "sbatch": 80}
RECORD_WAIT_S = 1.0
"""gpusaged records a decision after its answer has left."""


def read_trace(path: Path) -> dict[str, int]:
    """Return how many functions of each file were called, by its path in the checkout, in order of first calls."""
    counts: dict[str, int] = {}
    for file, _ in json.loads(path.read_text()):
        name = str(Path(file).relative_to(ROOT))
        counts[name] = counts.get(name, 0) + 1
    return counts


def trace_command(folder: Path, *arguments: str) -> dict[str, int]:
    """Return the files that the command `gpusage ARGUMENTS` passes."""
    path = folder / "command.json"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}  # no card is at hand from before
    command = [sys.executable, TRACED, str(path), "gpusage.cli", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return read_trace(path)


def trace_decision(folder: Path, model: Path) -> dict[str, int]:
    """Return the files that gpusaged passes for one submission of *model*, from its question to its record."""
    path = folder / "daemon.json"
    question = json.loads(submission_line(encode(gpusage.read_model(str(model))), "batch=64", 0))
    with started(runner=(TRACED, str(path))) as (place, process):
        process.send_signal(signal.SIGUSR1)
        client.ask(place / "s.sock", question, 60.0)
        time.sleep(RECORD_WAIT_S)
        process.send_signal(signal.SIGUSR2)
        wait_until(path.exists)
    return read_trace(path)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds.

    Raises:
        TimeoutError: It did not within 30 s.
    """
    deadline_s = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline_s:
            message = "the daemon wrote no list of its calls within 30 s"
            raise TimeoutError(message)
        time.sleep(0.05)


def show(title: str, counts: dict[str, int], *, with_files: bool) -> None:
    """Print one line, and the files if wanted."""
    goal = GOALS[title]
    verdict = "reached" if len(counts) <= goal else "missed"
    print(f"{title}: {len(counts)} files, {sum(counts.values())} functions (goal: at most {goal} files, {verdict})")
    if with_files:
        for name, count in counts.items():
            print(f"  {name}: {count}")


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--list", action="store_true", help="name the files, with the functions called in each")
    options = parser.parse_args()
    model = options.model.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        predict = trace_command(folder, "predict", str(model), "--batch", "64")
        submission = trace_command(folder, "job-card", "--limit-s", "60", "--", f"model={model},batch=64")
        decision = trace_decision(folder, model)
    show("gpusage predict", predict, with_files=options.list)
    show("sbatch", {**submission, **dict.fromkeys(LUA, 0), **decision}, with_files=options.list)


if __name__ == "__main__":
    main()
