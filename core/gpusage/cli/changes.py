"""Changes to files that an admin's command would make or has made, shown as a diff."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import click

from gpusage.boundary.edits import Edit, make_edits

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def show_and_make(edits: Iterable[Edit], *, schema: str, yes: bool, as_json: bool, after: str) -> None:
    """Show *edits*; with *yes*, make them, and say what comes *after*."""
    changing = [edit for edit in edits if edit.changes]
    if yes:
        make_edits(changing)
    if as_json:
        files = [{"path": str(edit.path), "diff": edit.diff()} for edit in changing]
        click.echo(json.dumps({"schema": schema, "applied": yes, "files": files}, indent=1))
        return
    for edit in changing:
        click.echo(_with_colours(edit.diff()), nl=False)
    if not changing:
        click.echo("Nothing to change.")
    elif yes:
        click.echo(f"Changed {_files(changing)}. {after}")
    else:
        click.echo(f"Would change {_files(changing)}. Add --yes to do it.")


def _files(edits: Sequence[object]) -> str:
    return "1 file" if len(edits) == 1 else f"{len(edits)} files"


def _with_colours(diff: str) -> str:
    return "".join(click.style(line, fg=_COLOURS.get(line[:1])) for line in diff.splitlines(keepends=True))
