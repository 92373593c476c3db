"""What the commands of `gpusage slurm sandbox` do, a function for each."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gpusage.configuration import SiteMode
from gpusage.sandboxes.inside import enter
from gpusage.sandboxes.progress import progress
from gpusage_slurm.sandbox import ClusterPlan, open_sandbox, parse_nodes, start_sandbox
from gpusage_slurm.sandbox.trial import install_plugin


def up(
    folder: Path, nodes: str, mps_per_gpu: int, release: str | None, mode: SiteMode | None, *, as_json: bool
) -> None:
    """Start a cluster."""
    plan = ClusterPlan(nodes=parse_nodes(nodes), mps_per_gpu=mps_per_gpu)
    with progress(quiet=as_json) as report:
        cluster = start_sandbox(plan, folder=folder, release=release, report=report)
    if mode:
        install_plugin(cluster, mode)
    if as_json:
        document = {
            "schema": "gpusage.slurm.sandbox/1",
            "folder": str(cluster.layout.folder),
            "up": True,
            "release": cluster.installation.release,
            "slurm_version": cluster.installation.version,
            "slurm_conf": str(cluster.layout.slurm_conf),
            "nodes": cluster.nodes(),
            "gpusage": mode,
        }
        click.echo(json.dumps(document, indent=1))
        return
    click.echo(f"Slurm {cluster.installation.version} is up in {cluster.layout.folder}: {', '.join(cluster.nodes())}.")
    if mode:
        click.echo(f"gpusage is installed there in mode {mode}, and gpusaged runs.")
    else:
        click.echo("It is plain Slurm; a sandbox with gpusage in it: gpusage slurm sandbox up --gpusage enforce")
    click.echo(f"Enter it: gpusage slurm sandbox shell --folder {folder}")


def shell(folder: Path, command: tuple[str, ...]) -> None:
    """Open a shell inside, or run COMMAND there."""
    enter(command, open_sandbox(folder).environment)


def down(folder: Path, *, as_json: bool) -> None:
    """End every job and daemon of the sandbox, and remove its folder."""
    open_sandbox(folder).down()
    document = {"schema": "gpusage.slurm.sandbox/1", "folder": str(folder.absolute()), "up": False}
    click.echo(json.dumps(document, indent=1) if as_json else f"{folder} is gone.")
