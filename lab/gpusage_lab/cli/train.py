"""`gpusage train`: either of its two ways, so that a controller fits its history without what fits the artifacts."""

from __future__ import annotations

from pathlib import Path

import click

from gpusage_lab.history.command import train_history


def train(
    folder: Path | None,
    names: tuple[str, ...],
    store_url: str | None,
    output: Path | None,
    *,
    history: bool,
    as_json: bool,
) -> None:
    """Fit the artifacts on the measurements in *folder*, or the history of a store."""
    if history:
        if folder or names:
            message = "--history fits the runs of a store; leave out --data and --target."
            raise click.UsageError(message)
        train_history(store_url, output, as_json=as_json)
        return
    if folder is None:
        message = "Missing option '--data'; or fit this site's own runs with --history."
        raise click.UsageError(message)
    if store_url or as_json:
        message = "--store and --json go with --history."
        raise click.UsageError(message)
    from gpusage_lab.cli import learning  # needs the extra [train]

    learning.train(folder, names, output)
