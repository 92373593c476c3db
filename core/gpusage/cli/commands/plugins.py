"""`gpusage plugins`: the plugins, their hooks, and what is wrong with them."""

from __future__ import annotations

import click

from gpusage.cli.deferred import run_by
from gpusage.cli.options import json_option

EXAMPLE = """\b
Examples:
  gpusage plugins
  gpusage plugins --json
"""


@click.command(epilog=EXAMPLE, short_help="List the plugins, their hooks, and what is wrong with them.")
@json_option
@run_by("gpusage.cli.plugins:list_plugins")
def command() -> None:
    """List the plugins, their hooks, and what is wrong with them.

    A plugin that cannot be used is set aside: gpusage works on without it. Exit status 1 where there is one.
    """
