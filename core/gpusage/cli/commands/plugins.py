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


@click.command(epilog=EXAMPLE)
@json_option
@run_by("gpusage.cli.plugins:list_plugins")
def command() -> None:
    """List the plugins, their hooks, and what is wrong with them.

    gpusage disables a plugin that it cannot use, and runs without it. The exit status is then 1.
    """
