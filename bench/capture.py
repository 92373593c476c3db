"""`python bench/capture.py FOLDER`: what `gpusage capture` sees of public scripts, unmodified, in clones under FOLDER.

FOLDER holds clones of github.com/pytorch/examples and github.com/karpathy/nanoGPT. Data sets that a script downloads
must lie there, or be of the same form: MNIST in examples/data, train.bin and val.bin in nanoGPT's data/openwebtext, and
wikitext-2 with 1,000 different words in word_language_model's data.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GPU_RUN = {"mode": "train", "precision": "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A script, and the keys and parameters that a reader of its code finds.

    Attributes:
        place: Its folder in a clone.
        words: Its command line.
    """

    place: str
    words: str
    keys: Mapping[str, str]
    parameter_count: int


RUNS = (
    Run(
        place="nanoGPT",
        words="train.py --wandb_log=False --gradient_accumulation_steps=4",
        keys={
            "batch": "12",
            "mode": "train",
            "precision": "bf16",
            "optimizer": "adamw",
            "accumulate": "4",
            "compile": "on",
        },
        parameter_count=124_373_760,
    ),
    Run(
        place="examples/mnist",
        words="main.py",
        keys={"batch": "64", **GPU_RUN, "optimizer": "adam"},
        parameter_count=1_199_882,
    ),
    Run(
        place="examples/vae",
        words="main.py",
        keys={"batch": "128", **GPU_RUN, "optimizer": "adam"},
        parameter_count=652_824,
    ),
    Run(
        place="examples/siamese_network",
        words="main.py",
        keys={"batch": "64", **GPU_RUN, "optimizer": "adam"},
        parameter_count=11_432_897,
    ),
    Run(
        place="examples/mnist_rnn",
        words="main.py",
        keys={"batch": "64", **GPU_RUN, "optimizer": "adam"},
        parameter_count=26_602,
    ),
    Run(
        place="examples/imagenet",
        words="main.py --dummy -a resnet50 -b 64",
        keys={"batch": "64", **GPU_RUN, "optimizer": "momentum"},
        parameter_count=25_557_032,
    ),
    Run(
        place="examples/dcgan",
        words="main.py --dataset fake --accel",
        keys={"batch": "64", **GPU_RUN, "optimizer": "adam"},
        parameter_count=2_765_568 + 3_576_704,
    ),
    Run(
        place="examples/word_language_model",
        words="main.py --accel --model LSTM",
        keys={"batch": "20", **GPU_RUN, "optimizer": "sgd"},
        parameter_count=1_044_200,
    ),
    Run(
        place="examples/word_language_model",
        words="main.py --accel --model Transformer",
        keys={"batch": "20", **GPU_RUN, "optimizer": "sgd"},
        parameter_count=885_400,
    ),
)


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1])
    print("| script | captured | parameters | what differs | elapsed |\n|---|---|--:|---|--:|")
    for run in RUNS:
        shown = capture(folder, run)
        if not shown.get("keys"):
            print(f"| {run.place} {run.words} | no | | {shown['error']} | |", flush=True)
            continue
        seen = {name: key["value"] for name, key in shown["keys"].items()}
        count = sum(module["parameter_count"] for module in shown["modules"])
        differs = [
            f"{name} {seen.get(name)} for {value}" for name, value in run.keys.items() if seen.get(name) != value
        ]
        differs += [f"{name} {value}" for name, value in seen.items() if name not in run.keys]
        differs += [f"for {run.parameter_count:,}"] if count != run.parameter_count else []
        captured = "yes" if shown["card"] else "keys only"
        elapsed = f"{shown['elapsed_s']:.0f} s"
        print(f"| {run.place} {run.words} | {captured} | {count:,} | {', '.join(differs)} | {elapsed} |", flush=True)


def capture(folder: Path, run: Run) -> dict[str, Any]:
    """Return what the command prints of *run* with ``--json``, or its error."""
    command = [sys.executable, "-m", "gpusage.cli", "capture", "--json", "--time", "200s", "--", sys.executable]
    done = subprocess.run(
        [*command, *run.words.split()], cwd=folder / run.place, capture_output=True, text=True, check=False
    )
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        document = {"error": (done.stderr.strip().splitlines() or ["nothing"])[-1]}
    return document


if __name__ == "__main__":
    main()
