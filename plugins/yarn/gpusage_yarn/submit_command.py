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
@click.option("--model", metavar="MODEL", help="As `gpusage predict` takes it; without one, a whole GPU is asked for.")
@options.workload_options
@click.option("--queue", default="", metavar="NAME", help="[default: by the site's rules]")
@click.option("--gpu", default="", metavar="LABEL", help="Only GPUs of this type, by its node label.")
@click.option("--containers", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Each runs COMMAND.")
@click.option("--memory-mib", type=click.IntRange(1, 1 << 24), default=4096, show_default=True, help="Of a container.")
@click.option("--vcores", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Of a container.")
@click.option("--name", help="[default: the command's first word]")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="For the command; may be repeated.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="To lie in the container's folder: through HDFS, or where the nodes see it at this path. May be repeated.",
)
@click.option("--rm", "addresses", multiple=True, metavar="URL", help="ResourceManager.  [default: Hadoop's own]")
@click.option("--wait/--detach", default=True, show_default=True, help="Wait for the end, and take over its status.")
@click.option("--dry-run", is_flag=True, help="Show what would be asked for; submit nothing.")
@options.json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
@run_by("gpusage_yarn.submit:submit")
def submit() -> None:
    """Run COMMAND on YARN with the share of a GPU that its model needs.

    One word is a shell command as typed, several are run as the words that they are. The exit status is the command's
    own; 143 where the application was killed.
    """
