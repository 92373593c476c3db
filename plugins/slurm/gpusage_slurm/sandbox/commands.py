"""`gpusage slurm sandbox`: up, shell, down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import click

from gpusage.configuration import SiteMode
from gpusage.sandboxes.inside import enter
from gpusage.sandboxes.progress import progress

_FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("gpusage-sandbox"),
    show_default=True,
    help="Where all of it lies.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def sandbox() -> None:
    """Bring up a private, real Slurm in a folder, without root, to try things on."""


@sandbox.command()
@_FOLDER
@click.option("--nodes", default="1xv100:2,1xa100:2,1xh100:2", show_default=True, help="COUNTxTYPE:GPUS,...")
@click.option("--mps", "mps_per_gpu", default=100, show_default=True, help="Units of gres/mps a GPU; 0 for none.")
@click.option("--release", help="A Debian or Ubuntu release's Slurm, for example trixie.  [default: the host's own]")
@click.option("--gpusage", "mode", type=click.Choice(get_args(SiteMode)), help="Install gpusage there, in this mode.")
@_JSON
def up(
    folder: Path, nodes: str, mps_per_gpu: int, release: str | None, mode: SiteMode | None, *, as_json: bool
) -> None:
    """Start a cluster.

    Slurm is fetched from the host's own apt mirror on first use; nothing is installed on the host.

    Example: gpusage slurm sandbox up --nodes 2xv100:4,1xh100:8 --release trixie --gpusage enforce
    """
    from gpusage_slurm.sandbox import ClusterPlan, parse_nodes, start_sandbox  # noqa: PLC0415 - --help stays quick
    from gpusage_slurm.sandbox.trial import install_plugin  # noqa: PLC0415 - as above

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


@sandbox.command(context_settings={"allow_interspersed_args": False})
@_FOLDER
@click.argument("command", nargs=-1)
def shell(folder: Path, command: tuple[str, ...]) -> None:
    """Open a shell inside, or run COMMAND there.

    Example: gpusage slurm sandbox shell sinfo -N
    """
    from gpusage_slurm.sandbox import open_sandbox  # noqa: PLC0415 - --help stays quick

    enter(command, open_sandbox(folder).environment)


@sandbox.command()
@_FOLDER
@_JSON
def down(folder: Path, *, as_json: bool) -> None:
    """End every job and daemon of the sandbox, and remove its folder.

    Example: gpusage slurm sandbox down
    """
    from gpusage_slurm.sandbox import open_sandbox  # noqa: PLC0415 - --help stays quick

    open_sandbox(folder).down()
    document = {"schema": "gpusage.slurm.sandbox/1", "folder": str(folder.absolute()), "up": False}
    click.echo(json.dumps(document, indent=1) if as_json else f"{folder} is gone.")
