"""The output file of a command: a page, which names the command that made it, or JSON."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import click

from gpusage.boundary.atomic_file import atomic_write
from gpusage.boundary.printable_text import one_line
from gpusage.reports.pages.html import Origin
from gpusage_hooks.errors import RequestError


def write_output(path: Path, text: str) -> None:
    """Write *text* to *path*, whole or not at all, and say so on standard error.

    Raises:
        RequestError: *path* cannot be written.
    """
    try:
        atomic_write(path, text)
    except OSError as error:
        message = f"Output {str(path)!r} must be a file that you may write; got: {error.strerror}. Name another one."
        raise RequestError(message) from error
    click.echo(one_line(f"Written: {path}"), err=True)


def page_origin() -> Origin:
    """Return where a page of this process is from; ``SOURCE_DATE_EPOCH`` sets its time, to compare pages."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.now().astimezone()
    if epoch.isdecimal():
        with suppress(OverflowError, ValueError):  # no year has so many digits
            now = datetime.fromtimestamp(int(epoch), tz=timezone.utc)
    program, *arguments = sys.argv or [""]
    return Origin(
        version=version("gpusage"),
        date=now.strftime("%Y-%m-%d %H:%M %Z"),
        command=shlex.join([Path(program).name, *arguments]),
    )
