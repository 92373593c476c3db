"""`gpusage gpus`: the GPU catalogue, and which of its rows this machine's GPUs are."""

from __future__ import annotations

import click

from gpusage.cli import options
from gpusage.cli.deferred import run_by

EXAMPLE = """\b
Examples:
  gpusage gpus
  gpusage gpus --local --json
"""


@click.command(epilog=EXAMPLE, short_help="List the GPU catalogue, with sources.")
@click.option("--local", is_flag=True, help="Only this machine's GPUs: which rows of the catalogue they are (NVML).")
@options.json_option
@run_by("gpusage.cli.gpus:gpus")
def command() -> None:
    """List the GPUs that predictions can be made for, and where each row is from.

    GPU names are understood in other spellings, too: workload managers' type names, NVML's names, and the short forms.
    """
