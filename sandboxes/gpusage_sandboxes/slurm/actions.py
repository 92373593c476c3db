"""What the commands of `gpusage slurm sandbox` do, a function for each."""

from __future__ import annotations

from pathlib import Path

from gpusage.settings.configuration import SiteMode
from gpusage_sandboxes.actions import mode_line, show_up, shut_down
from gpusage_sandboxes.counters import SIMULATED
from gpusage_sandboxes.host import progress
from gpusage_sandboxes.sandbox import enter
from gpusage_sandboxes.slurm import ClusterPlan, open_sandbox, parse_nodes, start_sandbox
from gpusage_sandboxes.slurm.creation import install_plugin


def up(  # noqa: PLR0913 - one for each option
    folder: Path,
    nodes: str,
    mps_per_gpu: int,
    release: str | None,
    mode: SiteMode | None,
    *,
    accounting: bool,
    as_json: bool,
) -> None:
    """Start a cluster."""
    plan = ClusterPlan(nodes=parse_nodes(nodes), mps_per_gpu=mps_per_gpu, accounting=accounting)
    with progress(quiet=as_json) as report:
        cluster = start_sandbox(plan, folder=folder, release=release, report=report)
    (cluster.layout.etc / SIMULATED).touch()
    if mode:
        install_plugin(cluster, mode)
    version = cluster.installation.version
    details = {
        "release": cluster.installation.release,
        "slurm_version": version,
        "slurm_conf": str(cluster.layout.slurm_conf),
        "nodes": cluster.nodes(),
        "gpusage": mode,
    }
    lines = (
        f"Slurm {version} is up in {cluster.layout.folder}: {', '.join(cluster.nodes())}.",
        mode_line(cluster.manager, "Slurm", mode),
    )
    show_up(cluster, details, lines, as_json=as_json)


def shell(folder: Path, command: tuple[str, ...]) -> None:
    """Open a shell inside, or run COMMAND there."""
    enter(command, open_sandbox(folder).environment)


def down(folder: Path, *, as_json: bool) -> None:
    """End every job and daemon of the sandbox, and remove its folder."""
    shut_down(open_sandbox(folder), folder, as_json=as_json)
