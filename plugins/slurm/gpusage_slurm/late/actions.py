"""What `gpusage slurm late` does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import click

from gpusage.cli import tables
from gpusage.configuration_file import load_configuration
from gpusage_hooks.errors import GpuUsageError
from gpusage_slurm.address import local_sockets
from gpusage_slurm.late.reading import reading_rights
from gpusage_slurm.late.second_look import SecondLook, Seen


def late(*, once: bool, as_json: bool) -> None:
    """Decide jobs that wait and brought no description of their model."""
    second_look = SecondLook(sockets=local_sockets())
    if once:
        _show(second_look.look(), as_json=as_json)
        return
    click.echo(f"gpusage slurm late reads models {reading_rights()}.", err=True)
    trouble = ""
    while True:
        trouble = _look(second_look, trouble, as_json=as_json)
        time.sleep(max(1.0, load_configuration().daemon.refresh_s))


def _look(second_look: SecondLook, told: str, *, as_json: bool) -> str:
    """Look once, and return why that could not be done; what was *told* of the last look is not told again."""
    try:
        seen = second_look.look()
    except GpuUsageError as error:  # slurmctld may be back next time
        if str(error) != told:
            click.echo(f"gpusage: {error}", err=True)
        return str(error)
    if seen:
        _show(seen, as_json=as_json)
    return ""


def _show(seen: Sequence[Seen], *, as_json: bool) -> None:
    if as_json:
        tables.print_json({"schema": "gpusage.slurm.late/1", "jobs": [asdict(each) for each in seen]})
        return
    for each in seen:
        click.echo(f"{each.job_id}: {each.outcome}" + (f": {each.why}" if each.why else ""))
    if not seen:
        click.echo("No job waits that brought no description of its model.")
