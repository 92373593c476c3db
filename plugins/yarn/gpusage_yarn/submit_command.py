"""`gpusage yarn submit`: what is typed."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import options
from gpusage.cli.deferred import run_by

EXAMPLE = """\b
Examples:
  gpusage yarn submit --model resnet50.onnx --batch 64 -- python train.py --epochs 3
  gpusage yarn submit --model bert.onnx,batch=8,mode=infer --containers 2 --detach -- 'python serve.py | tee log'
"""


@click.command(epilog=EXAMPLE)
@click.option("--model", metavar="MODEL", help="Model, as in `gpusage predict`; without it, ask for a whole GPU.")
@options.workload_options
@options.share_wish_options
@click.option("--queue", default="", metavar="NAME", help="Queue.  [default: by the site's rules]")
@click.option("--gpu", default="", metavar="LABEL", help="Use only GPUs of this type, named by its node label.")
@click.option(
    "--beside",
    default="",
    metavar="APPLICATION",
    help="Go to a node where this application runs, if one has room; wait for nothing.",
)
@click.option(
    "--containers", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Containers; each runs COMMAND."
)
@click.option(
    "--memory-mib", type=click.IntRange(1, 1 << 24), default=4096, show_default=True, help="Memory per container."
)
@click.option("--vcores", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Cores per container.")
@click.option("--name", help="Name of the application.  [default: the command's first word]")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Variable for the command; may be repeated.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File for the container's folder, sent through HDFS or read at the same path on the nodes; may be repeated.",
)
@click.option("--rm", "addresses", multiple=True, metavar="URL", help="ResourceManager.  [default: Hadoop's own]")
@click.option("--wait/--detach", default=True, show_default=True, help="Wait for the end, and exit with its status.")
@click.option(
    "--rescue/--no-rescue",
    default=True,
    show_default=True,
    help="Run COMMAND once more, with a whole GPU, if its share has too little GPU memory.",
)
@click.option("--dry-run", is_flag=True, help="Show the request; submit nothing.")
@options.json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
@run_by("gpusage_yarn.submit:submit")
def submit() -> None:
    """Run COMMAND on YARN with the share of a GPU that its model needs.

    A COMMAND of one word is run by a shell; several words are run as they are. The exit status is the command's own,
    or 143 if the application was killed.
    """
