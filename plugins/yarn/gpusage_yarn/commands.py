"""`gpusage yarn`: what users and admins type."""

from __future__ import annotations

import click

from gpusage_yarn.sandbox.commands import sandbox
from gpusage_yarn.submit import submit


@click.group()
def yarn() -> None:
    """Submit to YARN with predictions, and try gpusage on one."""


yarn.add_command(sandbox)
yarn.add_command(submit)
