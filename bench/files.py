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
from contextlib import closing
from pathlib import Path

import gpusage
from daemon import started, submission_line
from gpusage.graphs.card.text import encode
from gpusage.service import client
from gpusage.store.opening import open_store

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "examples" / "models" / "resnet50.onnx"
TRACED = str(Path(__file__).with_name("traced.py"))
LUA = ("plugins/slurm/gpusage_slurm/lua/gpusage_cli.lua", "plugins/slurm/gpusage_slurm/lua/gpusage.lua")


Passed = dict[str, set[str]]
"""The functions that ran, by the path of their file in the checkout, in the order of first calls."""


def read_trace(path: Path) -> Passed:
    """Return the functions that `traced.py` wrote to *path*."""
    functions: Passed = {}
    for file, function in json.loads(path.read_text()):
        functions.setdefault(str(Path(file).relative_to(ROOT)), set()).add(function)
    return functions


def trace_command(folder: Path, *arguments: str) -> Passed:
    """Return the files that the command `gpusage ARGUMENTS` passes."""
    path = folder / "command.json"
    # No card is at hand from before, and a table is as wide as in a file, whatever terminal measures.
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "COLUMNS": "120"}
    command = [sys.executable, TRACED, str(path), "gpusage.cli", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return read_trace(path)


def trace_decision(folder: Path, model: Path) -> Passed:
    """Return the files that gpusaged passes for one submission of *model*, from its question to its record."""
    path = folder / "daemon.json"
    question = json.loads(submission_line(encode(gpusage.read_model(str(model))), "batch=64", 0))
    with started(runner=(TRACED, str(path))) as (place, process):
        process.send_signal(signal.SIGUSR1)
        client.ask(place / "s.sock", question, 60.0)
        # Its record is written after the answer has left.
        with closing(open_store(f"sqlite:///{place}/decisions.db")) as store:
            wait_until(lambda: bool(store.latest(1)))
        process.send_signal(signal.SIGUSR2)
        wait_until(path.exists)
        # Here, because at its end the program writes once more, with what closes it.
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


def measure(model: Path = MODEL) -> dict[str, dict[str, int]]:
    """Return how many functions run in each file, for one `gpusage predict` and for one submission of *model*."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        predict = trace_command(folder, "predict", str(model), "--batch", "64")
        submission = trace_command(folder, "job-card", "--limit-s", "60", "--", f"model={model},batch=64")
        decision = trace_decision(folder, model)

    # A function that runs on both sides of the socket is one function.
    sbatch: Passed = {**submission, **{name: set() for name in LUA}}
    for name, functions in decision.items():
        sbatch[name] = sbatch.get(name, set()) | functions
    passed = {"gpusage predict": predict, "sbatch": sbatch}
    return {title: {name: len(functions) for name, functions in each.items()} for title, each in passed.items()}


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--list", action="store_true", help="name the files, with the functions called in each")
    options = parser.parse_args()
    for title, counts in measure(options.model.resolve()).items():
        print(f"{title}: {len(counts)} files, {sum(counts.values())} functions")
        if options.list:
            for name, count in counts.items():
                print(f"  {name}: {count}")


if __name__ == "__main__":
    main()
