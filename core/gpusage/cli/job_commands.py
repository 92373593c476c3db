"""The commands about jobs and this installation: their options and help; each action is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli import options
from gpusage.cli.program import run_by

VALIDATE_EXAMPLES = """\b
Examples:
  gpusage validate train.sbatch
  gpusage validate train.sbatch serve.sbatch --json
  gpusage status --json > cluster.json; gpusage validate train.sbatch --cluster cluster.json
"""
REPORT_EXAMPLES = """\b
Examples:
  gpusage report
  gpusage report --since 7d --user ada
  gpusage report --by user --by partition
  gpusage report --month 2026-10 -o report.html
  gpusage report --since 7d --user ada --text
  gpusage report --from accounting.txt --cluster cluster.json
"""


@click.command(epilog=VALIDATE_EXAMPLES)
@click.argument("scripts", metavar="SCRIPT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.path_option(
    "--cluster",
    "cluster_file",
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
    "--arguments",
    metavar="TEXT",
    default="",
    help="What you write behind the script's name when you submit it: --arguments '0.1 64'.",
)
@options.flag(
    "--learned",
    "uses_learned",
    help="Use your own earlier runs in this host's store.  Default: the model alone.",
)
@options.json_option
@click.pass_context
@run_by("gpusage.cli.validate:validate_scripts")
def validate() -> None:
    """Show what gpusage would do to each job SCRIPT, and why.

    Nothing is submitted or changed. The exit status is 1 if a script has an error; a request that gpusage keeps is no
    error.
    """


@click.command()
@click.argument("job_id", metavar="[JOBID]", default="")
@click.option(
    "--last", "count", type=click.IntRange(1, 100_000), metavar="N", help="Show the last N decisions.  [default: 20]"
)
@click.option("--user", metavar="NAME", default="", help="Show only this user's jobs.")
@click.option(
    "--as-profile",
    "profile_folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Instead, write what jobs used alone on a whole GPU as tables for 'gpusage train --data FOLDER', and "
    "pairs.csv for 'gpusage colocate --pairs': runs beside one other job.",
)
@options.json_option
@run_by("gpusage.cli.decisions:decisions")
def decisions() -> None:
    """Show what gpusage did to a job, and why; without JOBID, the last decisions.

    A job's own user sees the line in the job. Users who may read the daemon's store see the whole record.

    Example: gpusage decisions 1234
    """


@click.command(epilog=REPORT_EXAMPLES)
@click.option(
    "--since",
    "since_s",
    type=options.TIME,
    default="30d",
    show_default=True,
    help="How far back: 12h, 30d.",
)
@click.option(
    "--month", metavar="YEAR-MONTH", help="A month, beside the month before it, in place of --since: 2026-10."
)
@click.option("--user", metavar="NAME", default="", help="Only this user's jobs.")
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(["user", "account", "partition", "model", "gpu"]),
    help="Show the GPU hours by this as well; may be repeated. The page and the JSON document have all.",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with plots as well."
)
@click.option("--json", "forms", flag_value="json", multiple=True, help="Print one JSON document, and nothing else.")
@click.option(
    "--text",
    "forms",
    flag_value="text",
    multiple=True,
    help="Print a user's report as the text of an e-mail; see --user.",
)
@options.path_option(
    "--from",
    "jobs_file",
    help="In place of the store, what a workload manager's accounting printed; docs/admin.md has the command.",
)
@options.path_option(
    "--cluster",
    "cluster_file",
    help="With --from: as for 'gpusage validate'.  [default: the local workload manager's]",
)
@run_by("gpusage.cli.report:report")
def report() -> None:
    """Report decisions, GPU hours asked, booked, used and freed, promises, and predicted against observed figures.

    It reads the daemon's store, so run it as root or as the daemon's user. With a price per
    hour in gpusage.toml, it also shows money. Hours are sums, never means over jobs; unobserved hours are never idle.
    With --from it needs no daemon: it shows what the jobs of a site without gpusage held, and what shares would free.
    """


@click.command()
@options.json_option
@run_by("gpusage.cli.status:show_status")
def status() -> None:
    """Show what gpusaged on this host observes: its mode, its clusters, and how many decisions it has made.

    With --json, this is a cluster file for `gpusage validate --cluster`.

    Example: gpusage status --json
    """


@click.command()
@options.json_option
@run_by("gpusage.cli.listings:list_plugins")
def plugins() -> None:
    """List the plugins, their hooks, and what is wrong with them.

    gpusage disables a plugin that it cannot use, and runs without it. The exit status is then 1.

    Example: gpusage plugins --json
    """
