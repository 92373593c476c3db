"""`gpusage yarn`: the commands of users and admins, with their options; each names the function that carries it out."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from gpusage.cli import options
from gpusage.cli.program import run_by
from gpusage.node.dividing import PROGRAM, libexec_folder
from gpusage.settings.configuration import SiteMode

EXAMPLE = """\b
Examples:
  gpusage yarn submit --model resnet50.onnx --batch 64 -- python train.py --epochs 3
  gpusage yarn submit --model bert.onnx,batch=8,mode=infer --containers 2 --detach -- 'python serve.py | tee log'
"""


@click.command(epilog=EXAMPLE)
@click.option("--model", metavar="MODEL", help="Model, as in `gpusage predict`; without it, ask for a whole GPU.")
@options.job_options()
@click.option("--queue", default="", metavar="NAME", help="Queue.  [default: by the site's rules]")
@click.option("--gpu", default="", metavar="LABEL", help="Use only GPUs of this type, named by its node label.")
@click.option(
    "--containers", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Containers; each runs COMMAND."
)
@click.option(
    "--memory-mib", type=click.IntRange(1, 1 << 24), default=4096, show_default=True, help="Memory per container."
)
@click.option("--vcores", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Cores per container.")
@click.option(
    "--priority", type=click.IntRange(0), help="Priority in the queue, the highest first.  [default: the queue's]"
)
@click.option("--tag", "tags", multiple=True, metavar="TEXT", help="Tag of the application; may be repeated.")
@click.option(
    "--attempts", type=click.IntRange(1), default=2, show_default=True, help="How often YARN starts the master."
)
@click.option(
    "--lifetime",
    "lifetime_s",
    type=options.TIME,
    help="End the application after this time, waiting included, like 90s, 25m, 8h or 2d.",
)
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
@click.option(
    "--learn/--no-learn",
    "learns",
    default=None,
    help="Without --model, let this run show its model to the next one of COMMAND.  [default: as the site says]",
)
@click.option("--dry-run", is_flag=True, help="Show the request; submit nothing.")
@options.json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
@run_by("gpusage_yarn.submission.command:submit")
def submit() -> None:
    """Run COMMAND on YARN with the share of a GPU that its model needs.

    A shell runs a COMMAND of one word; several words run as they are. The exit status is the command's own,
    or 143 if the application was killed.
    """


_CONF_DIR = click.option(
    "--conf-dir",
    type=click.Path(path_type=Path),
    help="Hadoop's configuration.  [default: $YARN_CONF_DIR, $HADOOP_CONF_DIR, else /etc/hadoop/conf]",
)
_ROLE = click.option(
    "--role",
    "roles",
    type=click.Choice(("rm", "node", "client")),
    multiple=True,
    default=("rm", "node"),
    show_default=True,
    help="Hosts that read this configuration; may be repeated.",
)
_RM = click.option("--rm", "addresses", multiple=True, metavar="URL", help="ResourceManager.  [default: Hadoop's own]")
_YES = click.option("--yes", is_flag=True, help="Make the change instead of only showing it.")


@click.group(short_help="Submit to YARN; install, check and try gpusage for it.")
def yarn() -> None:
    """Submit to YARN with predictions; install, check and try gpusage for YARN."""


yarn.add_command(submit)


@yarn.command()
@_CONF_DIR
@_ROLE
@click.option("--gpus", type=click.IntRange(0, 64), help="GPUs that each node of this configuration shares.")
@click.option(
    "--mps-command",
    default="",
    is_flag=False,
    flag_value=str(libexec_folder() / PROGRAM.name),
    metavar="PATH",
    help="Program that starts MPS daemons on the nodes.  [with no value: /usr/libexec/gpusage/gpusage-mps]",
)
@click.option("--mode", type=click.Choice(get_args(SiteMode)), help="What gpusage may do.  [default: observe]")
@_YES
@options.json_option
@run_by("gpusage_yarn.actions:install")
def install() -> None:
    """Show what installing would change in Hadoop's files; with --yes, change it.

    Copy our jar to share/hadoop/yarn/lib on every host first: --yes is refused if one of our classes would not load.
    In mode `observe`, gpusage records decisions and rewrites no application: begin with it.

    Example: gpusage yarn install --role node --gpus 4 --yes
    """


@click.command()
@run_by("gpusage_yarn.jar:show_jar")
def jar() -> None:
    """Print the path of the jar for Hadoop's daemons, to copy it.

    Example: cp "$(gpusage yarn jar)" $HADOOP_HOME/share/hadoop/yarn/lib/
    """


@yarn.command()
@_CONF_DIR
@_ROLE
@_YES
@options.json_option
@run_by("gpusage_yarn.actions:uninstall")
def uninstall() -> None:
    """Show what uninstalling would change in Hadoop's files; with --yes, change it.

    It restores the site's own bytes in each file.

    Example: gpusage yarn uninstall --yes
    """


@yarn.command()
@_CONF_DIR
@_RM
@options.json_option
@click.pass_context
@run_by("gpusage_yarn.actions:doctor")
def doctor() -> None:
    """Check the installation; each line passes, warns or fails, and says what to do.

    The exit status is 1 if a check fails.

    Example: gpusage yarn doctor
    """


@yarn.command()
@_RM
@options.json_option
@run_by("gpusage_yarn.actions:status")
def status() -> None:
    """Show the GPUs of each node label, how many are free, and what gpusaged does.

    Example: gpusage yarn status
    """
