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
    help="Rank the models of this file, one a line, as partners of the one MODEL.",
)
@click.option(
    "--running",
    "is_running",
    is_flag=True,
    help="Rank the jobs that run now, by what was recorded of them; jobs that name no model are not seen.",
)
@click.option("--queue", "is_waiting", is_flag=True, help="The same of the jobs that wait.")
@click.option(
    "--fair",
    "is_fair",
    is_flag=True,
    help="Divide the GPU's threads so that the job that is slowed most is slowed least.",
)
@options.gpu_option(multiple=False)
@options.workload_options
@options.json_option
@click.pass_context
@run_by("gpusage.cli.together.colocate:colocate")
def command() -> None:
    """Predict the throughput of each MODEL beside the others on one GPU under MPS.

    A MODEL may have its own options after commas; the command's options are the defaults. The exit status is 1 if
    sharing is not recommended; with --among, --running or --queue, if it is with none of the candidates.
    """
