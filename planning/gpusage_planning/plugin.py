"""What planning adds to gpusage: its commands."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpusage_hooks import hookimpl

__all__ = ["add_commands"]


@hookimpl(trylast=True)
def add_commands() -> Sequence[click.Command]:
    """Return `gpusage plan` and `gpusage simulate`."""
    from gpusage_planning.commands import plan, simulate  # gpusaged has no commands

    return [plan, simulate]
