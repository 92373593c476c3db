"""`gpusage gate`: runs training so that it leaves room for an inference job beside it."""

from __future__ import annotations

import click

from gpusage.cli.deferred import run_by

EXAMPLE = """\b
Examples:
  gpusage gate -- python train.py --epochs 3
  gpusage gate --serve -- python server.py
"""


@click.command(
    name="gate",
    epilog=EXAMPLE,
    context_settings={"allow_interspersed_args": False},
)
@click.option("--serve", is_flag=True, help="COMMAND is the inference job; each call of its model is a request.")
@click.option("--gpu", metavar="NAME", help="Predict the parts of a step for this GPU.  [default: PyTorch's own]")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@run_by("gpusage.cli.gate:gate")
def command() -> None:
    """Run COMMAND, a Python program, so that training gives way to inference on one GPU.

    While a request is in flight, training holds back the parts of its step that need more than half of the GPU.
    It keeps at least a fifth of the time. Both jobs must be one user's. It needs the extra [torch].
    """
