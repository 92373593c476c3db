"""`gpusage predict`: what each model needs on each GPU."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import options
from gpusage.cli.deferred import run_by
from gpusage.cli.options import read_duration
from gpusage.cli.predicting import batches, serve_options

EXAMPLE = """\b
Examples:
  gpusage predict examples/models/resnet50.onnx --batch 64 --gpu v100 --gpu h100
  gpusage predict examples/models/bert_base.onnx,batch=8,precision=bf16 --json
  gpusage predict examples/models/resnet50.onnx --batch 64 --gpu v100 --explain -o resnet50.html
  gpusage predict examples/models/resnet50.onnx --batch 64 --steps 100000 --deadline 8h
  gpusage predict examples/models/resnet50.onnx --batch 64 --gpu v100 --share 50 --share 25 --utilization 60
  gpusage predict examples/models/resnet50.onnx --batch 32,64,128 --gpu v100
  gpusage predict examples/models/resnet50.onnx --max-batch --precision bf16
  gpusage predict examples/models/gpt2.onnx --serve --generate 512+128 --precision fp16 --rate 5/s --p99 200ms
"""


@click.command(epilog=EXAMPLE)
@options.models_argument
@options.gpu_option(multiple=True)
@batches.batch_options
@options.step_options
@batches.share_option
@options.job_options("utilization", "step_time", "steps")
@click.option(
    "--deadline",
    "deadline_s",
    metavar="TIME",
    callback=read_duration,
    help="Name the cheapest GPU on which the run ends within TIME, such as 8h; needs --steps.",
)
@click.option(
    "--explain",
    "explains",
    is_flag=True,
    help="Show where time and memory go, by operator class and by layer, on each --gpu or else the newest.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the explanation as an HTML page with plots, which needs no network; FILE.json gets what --json prints.",
)
@click.option(
    "--fail-if-not-fits",
    "must_fit",
    is_flag=True,
    help="Exit with status 1 if the memory of a prediction does not fit, by its upper end.",
)
@serve_options.serve_options
@options.json_option
@click.pass_context
@run_by("gpusage.cli.predicting.predict:predict")
def command() -> None:
    """Predict what each MODEL needs on each GPU: time, memory, utilization.

    MODEL is an .onnx or .pt2 file, a Hugging Face folder, a saved card or a name such as timm:resnet50. It may carry
    its own options behind commas.
    """
