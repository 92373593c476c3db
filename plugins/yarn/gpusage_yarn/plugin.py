"""What gpusage's YARN adapter answers when the core asks; nothing slow is imported before it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpusage_hooks import hookimpl

__all__ = ["add_commands"]


@hookimpl(trylast=True)
def add_commands() -> Sequence[click.Command]:
    """Return `gpusage yarn`."""
    from gpusage_yarn.commands import yarn  # noqa: PLC0415 - only the command line needs it

    return [yarn]
