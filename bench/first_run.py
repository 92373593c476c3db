"""What it costs a job to show gpusage its model in its own run: start-up, the observed steps, and the steps after.

Each program runs in pairs, with and without the observation, on this host's processor: the figures are ratios and
differences within pairs. A GPU's steps are longer, and what is observed costs the same, so that a GPU's ratios are
nearer to 1.

Examples:
    python bench/first_run.py --pairs 5
    python bench/first_run.py --pairs 7 --model tiny --steps 30000    # long after the card was made
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import click

from gpusage.capture import ON_START

PROGRAM = """
import json, sys, time
begun_s = time.perf_counter()
import torch
imported_s = time.perf_counter() - begun_s
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
width, depth, batch, steps = map(int, sys.argv[1:])
model = nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())))
optimizer = torch.optim.AdamW(model.parameters())
steps_s = []
for _ in range(steps):
    x = torch.randn(batch, width)
    begun_s = time.perf_counter()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    steps_s.append(time.perf_counter() - begun_s)
print(json.dumps({"imported_s": imported_s, "steps_s": steps_s}))
"""
SIZES = {"tiny": (8, 2, 4), "small": (256, 8, 64), "larger": (512, 8, 64)}
LINE = "| {} | {} | {} | {} | {} |"


def run(size: tuple[int, int, int], steps: int, record: Path | None) -> dict[str, float]:
    """Return the times of one run of so many *steps*; *record* is where it is to be observed."""
    variables = {"PYTHONPATH": str(ON_START), "GPUSAGE_LEARN": str(record)} if record else {}
    command = [sys.executable, "-c", PROGRAM, *map(str, size), str(steps)]
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, check=True)
    document = json.loads(done.stdout)
    steps_s = document["steps_s"]
    return {
        "import": document["imported_s"],
        "observed": sum(steps_s[1:3]),
        "timed": median(steps_s[10:60]),
        "after": median(steps_s[steps // 2 :]),
    }


@click.command(help=__doc__)
@click.option("--pairs", default=5, show_default=True)
@click.option("--model", "names", multiple=True, type=click.Choice([*SIZES]), help="Only this one; may be repeated.")
@click.option("--steps", default=200, show_default=True, type=click.IntRange(min=120), help="Of each run.")
def main(*, pairs: int, names: tuple[str, ...], steps: int) -> None:
    """Print a row for each size of model."""
    click.echo(
        LINE.format(
            "model", "import of PyTorch, s more", "the card's pause, ms", "steps 10 to 60", "later half of the steps"
        )
    )
    click.echo("|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name in names or SIZES:
            both = [(run(SIZES[name], steps, None), run(SIZES[name], steps, Path(folder) / name)) for _ in range(pairs)]
            more_s = median(seen["import"] - alone["import"] for alone, seen in both)
            pause_s = median(seen["observed"] - alone["observed"] for alone, seen in both)
            ratios = [median(seen[part] / alone[part] for alone, seen in both) for part in ("timed", "after")]
            click.echo(LINE.format(name, f"{more_s:.2f}", f"{1e3 * pause_s:.0f}", *(f"{each:.3f}" for each in ratios)))


if __name__ == "__main__":
    main()
