"""The options that the commands of every sandbox have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from gpusage.settings.configuration import SiteMode

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def folder_option(default: str) -> Decorator:
    """Return the option ``--folder``."""
    return click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(default),
        show_default=True,
        help="Folder of the sandbox.",
    )


mode_option = click.option(
    "--gpusage", "mode", type=click.Choice(get_args(SiteMode)), help="Switch gpusage on there, in this mode."
)
