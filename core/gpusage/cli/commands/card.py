"""`gpusage card`: the compact description of a model that travels with a job."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import options
from gpusage.cli.deferred import run_by

EXAMPLE = """\b
Examples:
  gpusage card examples/models/resnet50.onnx
  gpusage card examples/models/resnet50.onnx -o resnet50.card.json
  gpusage card examples/models/unet.onnx --json
"""


@click.command(epilog=EXAMPLE)
@options.models_argument
@options.job_options("shape")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Save the readable form here, as NAME.card.json; name a folder for several models.",
)
@options.json_option
@click.pass_context
@run_by("gpusage.cli.cards.card:card")
def command() -> None:
    """Describe each MODEL in at most 4096 characters, without its weights.

    gpusage predicts the same from a card as from the model file. With --json, the card is in `card`.
    """
