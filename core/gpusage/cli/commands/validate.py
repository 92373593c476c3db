"""`gpusage validate`: what the plugin would do to job scripts, and why; touches nothing."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import options
from gpusage.cli.deferred import run_by

EXAMPLE = """\b
Examples:
  gpusage validate train.sbatch
  gpusage validate train.sbatch serve.sbatch --json
  gpusage status --json > cluster.json; gpusage validate train.sbatch --cluster cluster.json
"""


@click.command(epilog=EXAMPLE)
@click.argument("scripts", metavar="SCRIPT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--cluster",
    "cluster_file",
    type=click.Path(path_type=Path),
    help="File that describes the cluster: JSON, TOML, or a workload manager's own .conf.  "
    "[default: ask the local workload manager, else an example]",
)
@click.option(
    "--manager",
    "manager_name",
    metavar="NAME",
    help="Workload manager of the scripts.  [default: the one whose directives they contain]",
)
@click.option(
    "--learned",
    "uses_learned",
    is_flag=True,
    help="Use your own earlier runs in this host's store.  Default: the model alone.",
)
@options.json_option
@click.pass_context
@run_by("gpusage.cli.validate:validate_scripts")
def command() -> None:
    """Show what gpusage would do to each job SCRIPT, and why.

    Nothing is submitted or changed. The exit status is 1 if a script has an error; a request that gpusage keeps is no
    error.
    """
