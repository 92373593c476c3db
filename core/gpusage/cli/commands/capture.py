"""`gpusage capture`: the model, batch, precision and optimizer of a script, seen by running it to its first step."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import options
from gpusage.cli.deferred import run_by
from gpusage.cli.options import read_duration

EXAMPLE = """\b
Examples:
  gpusage capture -- python train.py --epochs 3
  gpusage capture -o resnet.card.json -- torchrun --nproc_per_node 4 train.py
  gpusage capture train.sbatch
  gpusage capture --submit train.sbatch
  gpusage capture --shell 'cd examples && BATCH=64 python train.py --batch $BATCH'
"""


@click.command(
    name="capture",
    epilog=EXAMPLE,
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Save the card here, as NAME.card.json.  [default: in a cache]",
)
@click.option(
    "--gpus", "gpu_count", type=click.IntRange(1, 4096), help="GPUs that train together.  [default: torchrun's]"
)
@click.option("--time", "time_s", default="60s", show_default=True, callback=read_duration, help="End it after this.")
@click.option("--network", "has_network", is_flag=True, help="Let the program use the network.")
@click.option("--run-here", "runs_here", is_flag=True, help="Let the program really write files before its first step.")
@click.option("--shell", "line", metavar="TEXT", help="A command line as one text, with variables and 'cd'.")
@click.option(
    "--submit", "submits", is_flag=True, help="Then submit SCRIPT with what was seen, unless it names a model itself."
)
@options.json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT | -- COMMAND...")
@click.pass_context
@run_by("gpusage.cli.capture:capture")
def command() -> None:
    """Run a Python program on this host up to its first full step, and print its card and the comment for its job.

    The program thinks that it has a GPU, its layers work on shapes alone, and it ends after one update. What it writes
    stays in memory. COMMAND must run Python; SCRIPT is a job script with such a line. It needs PyTorch.
    """
