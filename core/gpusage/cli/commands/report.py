"""`gpusage report`: what was decided, what jobs used, and what that saved."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage.cli.deferred import run_by
from gpusage.cli.options import read_duration

EXAMPLE = """\b
Examples:
  gpusage report
  gpusage report --since 7d --user ada
  gpusage report --by user --by partition
  gpusage report --month 2026-10 -o report.html
  gpusage report --since 7d --user ada --text
"""


@click.command(name="report", epilog=EXAMPLE)
@click.option(
    "--since",
    "since_s",
    metavar="TIME",
    default="30d",
    show_default=True,
    callback=read_duration,
    help="How far back: 12h, 30d.",
)
@click.option(
    "--month", metavar="YEAR-MONTH", help="A month, beside the month before it, in place of --since: 2026-10."
)
@click.option("--user", metavar="NAME", default="", help="Only this user's jobs.")
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(["user", "account", "partition", "model"]),
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
@run_by("gpusage.cli.past.report:report")
def command() -> None:
    """Report decisions, GPU hours asked, booked, used and saved, promises, and predicted against observed figures.

    It reads the daemon's store, so run it as root or as the daemon's user. With a price per
    hour in gpusage.toml, it also shows money. Hours are sums, never means over jobs; unobserved hours are never idle.
    """
