"""What the laboratory answers when the core asks: its commands."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpusage_hooks import hookimpl

__all__ = ["add_commands"]


@hookimpl(trylast=True)
def add_commands() -> Sequence[click.Command]:
    """Return `gpusage train`, `evaluate` and `profile`."""
    from gpusage_lab.cli.commands import evaluate, profile, train  # gpusaged has no commands

    return [train, evaluate, profile]
