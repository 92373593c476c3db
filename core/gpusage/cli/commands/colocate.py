"""`gpusage colocate`: what jobs on one GPU do to each other."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import options
from gpusage.cli.deferred import run_by

EXAMPLE = """\b
Examples:
  cd examples/models
  gpusage colocate resnet50.onnx bert_base.onnx --batch 1 --mode infer --gpu a100
  gpusage colocate resnet18.onnx,batch=16 dlrm.onnx,mode=infer --gpu v100 --json
  gpusage colocate resnet18.onnx,batch=16 lstm_lm.onnx,batch=8 --fair --gpu h100
  gpusage colocate resnet18.onnx,batch=16 --among ../candidates.txt --gpu v100
"""


@click.command(epilog=EXAMPLE)
@options.models_argument
@click.option(
    "--among",
    "candidates",
    type=click.Path(path_type=Path),
    help="Rank the models of this file, one per line, as partners of MODEL.",
)
@click.option(
    "--running",
    "is_running",
    is_flag=True,
    help="Rank the running jobs by their recorded predictions; jobs that name no model are left out.",
)
@click.option("--queue", "is_waiting", is_flag=True, help="The same for pending jobs.")
@click.option(
    "--fair",
    "is_fair",
    is_flag=True,
    help="Divide the GPU's threads so that the largest slowdown is as small as possible.",
)
@options.gpu_option(multiple=False)
@options.workload_options
@options.json_option
@click.pass_context
@run_by("gpusage.cli.together.colocate:colocate")
def command() -> None:
    """Predict the throughput of each MODEL beside the others on one GPU under MPS.

    A MODEL may have its own options after commas; the command's options are the defaults. The exit status is 1 if
    sharing is not recommended; with --among, --running or --queue, if no candidate is recommended.
    """
