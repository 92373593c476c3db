"""What the commands of every sandbox do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from gpusage.settings.configuration import SiteMode
from gpusage_sandboxes.sandbox import Sandbox


def show_up(sandbox: Sandbox, details: Mapping[str, object], lines: Sequence[str], *, as_json: bool) -> None:
    """Show that *sandbox* is up: as a document with *details*, or as *lines*."""
    folder = str(sandbox.layout.folder)
    if as_json:
        _print_document(sandbox.manager, folder, is_up=True, details=details)
        return
    click.echo("\n".join(lines))
    click.echo(f"Enter it: gpusage {sandbox.manager} sandbox shell --folder {folder}")


def mode_line(manager: str, title: str, mode: SiteMode | None) -> str:
    """Return whether gpusage is on in a sandbox of *manager*, which people call *title*, in one line."""
    if mode:
        return f"gpusage is switched on there in mode {mode}, and gpusaged runs."
    return f"It is plain {title}; a sandbox with gpusage in it: gpusage {manager} sandbox up --gpusage enforce"


def shut_down(sandbox: Sandbox, folder: Path, *, as_json: bool) -> None:
    """End every job and daemon of *sandbox*, remove its *folder*, and show that."""
    sandbox.down()
    if as_json:
        _print_document(sandbox.manager, str(folder.absolute()), is_up=False, details={})
    else:
        click.echo(f"{folder} is gone.")


def _print_document(manager: str, folder: str, *, is_up: bool, details: Mapping[str, object]) -> None:
    document = {"schema": f"gpusage.{manager}.sandbox/1", "folder": folder, "up": is_up, **details}
    click.echo(json.dumps(document, indent=1))
