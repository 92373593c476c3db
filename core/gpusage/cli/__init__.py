"""The command line."""

from __future__ import annotations

import click


@click.group()
@click.version_option(package_name="gpusage")
def main() -> None:
    """Predict what deep-learning jobs need from a GPU, before they run."""
