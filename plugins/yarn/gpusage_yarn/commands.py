"""`gpusage yarn`: what users and admins type."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from gpusage.cli.deferred import run_by
from gpusage.configuration import SiteMode
from gpusage.dividing import PROGRAM
from gpusage_yarn.sandbox_commands import sandbox
from gpusage_yarn.submit_command import submit

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
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group(short_help="Submit to YARN; install, check and try gpusage for it.")
def yarn() -> None:
    """Submit to YARN with predictions; install, check and try gpusage for YARN."""


yarn.add_command(sandbox)
yarn.add_command(submit)


@yarn.command()
@_CONF_DIR
@_ROLE
@click.option("--gpus", type=click.IntRange(0, 64), help="GPUs that each node of this configuration shares.")
@click.option(
    "--mps-command",
    default="",
    is_flag=False,
    flag_value=str(PROGRAM),
    metavar="PATH",
    help="Program that starts MPS daemons on the nodes.  [with no value: this installation's gpusage-mps]",
)
@click.option("--mode", type=click.Choice(get_args(SiteMode)), help="What gpusage may do.  [default: observe]")
@_YES
@_JSON
@run_by("gpusage_yarn.actions_on_files:install")
def install() -> None:
    """Show what installing would change in Hadoop's files; with --yes, change it.

    Copy our jar to share/hadoop/yarn/lib on every host first: --yes is refused if one of our classes would not load.
    In mode `observe`, gpusage records decisions and rewrites no application: begin with it.

    Example: gpusage yarn install --role node --gpus 4 --yes
    """


@yarn.command()
@run_by("gpusage_yarn.actions_on_files:jar")
def jar() -> None:
    """Print where the jar for Hadoop's daemons is, to copy it; in a checkout it is built first.

    Example: cp "$(gpusage yarn jar)" $HADOOP_HOME/share/hadoop/yarn/lib/
    """


@yarn.command()
@_CONF_DIR
@_ROLE
@_YES
@_JSON
@run_by("gpusage_yarn.actions_on_files:uninstall")
def uninstall() -> None:
    """Show what uninstalling would change in Hadoop's files; with --yes, change it.

    Each file has the site's own bytes again.

    Example: gpusage yarn uninstall --yes
    """


@yarn.command()
@_CONF_DIR
@_RM
@_JSON
@click.pass_context
@run_by("gpusage_yarn.actions_on_cluster:doctor")
def doctor() -> None:
    """Check the installation; each line passes, warns or fails, and says what to do.

    The exit status is 1 where a check fails.

    Example: gpusage yarn doctor
    """


@yarn.command()
@_RM
@_JSON
@run_by("gpusage_yarn.actions_on_cluster:status")
def status() -> None:
    """Show the GPUs of each node label and what is free of them, and what gpusaged does.

    Example: gpusage yarn status
    """
