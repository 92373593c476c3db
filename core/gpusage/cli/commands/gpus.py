"""`gpusage gpus`: the GPU catalogue, and which of its rows this machine's GPUs are."""

from __future__ import annotations

import click

from gpusage.cli import options
from gpusage.cli.deferred import run_by

EXAMPLE = """\b
Examples:
  gpusage gpus
  gpusage gpus a100 l40s
  gpusage gpus --local --json
"""


@click.command(epilog=EXAMPLE)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--local", is_flag=True, help="List only this machine's GPUs (NVML), each with its row of the catalogue.")
@options.json_option
@run_by("gpusage.cli.gpus:gpus")
def command() -> None:
    """List the GPUs that gpusage can predict for, or only those that are named, and the source of each row.

    gpusage also understands other names of a GPU: workload managers' type names, NVML's names, and the short forms.
    """
