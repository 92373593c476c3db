"""What the laboratory answers when the core asks: its commands; they are imported only then."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpusage_hooks import hookimpl

__all__ = ["add_commands"]


@hookimpl(trylast=True)
def add_commands() -> Sequence[click.Command]:
    """Return `gpusage train`, `evaluate` and `profile`."""
    from gpusage_lab.cli.learning import evaluate, train  # noqa: PLC0415 - only the command line needs them
    from gpusage_lab.cli.profile import command as profile  # noqa: PLC0415 - as above

    return [train, evaluate, profile]
