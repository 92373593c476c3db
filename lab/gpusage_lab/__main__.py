"""`python -m gpusage_lab`: the laboratory's commands where gpusage is not installed, such as on a lent machine."""

from __future__ import annotations

import sys

import click

from gpusage.cli.program import exit_status
from gpusage_lab.plugin import add_commands

if __name__ == "__main__":
    group = click.Group("gpusage_lab", {command.name or "": command for command in add_commands()})
    sys.exit(exit_status(lambda: group.main(standalone_mode=False), sys.argv[1:]))
