"""How a sandbox of Slurm comes into being."""

from __future__ import annotations

import secrets
import shutil
import socket
from pathlib import Path

from gpusage.boundary.operating_system import user_name
from gpusage_sandboxes.gpusaged import write_gpusage_toml
from gpusage_sandboxes.host import free_ports, private_folder
from gpusage_sandboxes.progress import Report, silent
from gpusage_sandboxes.record import write_record
from gpusage_sandboxes.sandbox import down_on_failure
from gpusage_sandboxes.slurm.accounting import lay_out_accounting
from gpusage_sandboxes.slurm.cluster import Record, Sandbox
from gpusage_sandboxes.slurm.installation import prepare_installation
from gpusage_sandboxes.slurm.layout import ClusterPlan, Layout, render_cgroup_conf, render_gres_conf
from gpusage_sandboxes.slurm.slurm_conf import Host, render_slurm_conf

_DEVICE = "/dev/null"  # a character device that every Linux has; the sandbox's GPUs are links to it


def start_sandbox(
    plan: ClusterPlan, *, folder: Path | None = None, release: str | None = None, report: Report = silent
) -> Sandbox:
    """Return a new sandbox in *folder* (a temporary one where ``None``) of *release* (the host's own where ``None``).

    Raises:
        RequestError: The folder is not empty, the release cannot be had, or a daemon does not come up.
    """
    installation = prepare_installation(release, accounting=plan.accounting, report=report)
    layout = Layout(folder=private_folder(folder, plan.longest_folder))
    sandbox = Sandbox(layout=layout, installation=installation)
    with down_on_failure(sandbox, report):
        _lay_out(plan, sandbox)
        sandbox.start()
    return sandbox


def _lay_out(plan: ClusterPlan, sandbox: Sandbox) -> None:
    """Write everything that the daemons read."""
    layout, installation = sandbox.layout, sandbox.installation
    write_record(layout, Record(installation=str(installation.folder)))
    for folder in (layout.etc, layout.logs, layout.run, layout.jobs, layout.state, layout.state / "slurmctld"):
        folder.mkdir()
    if plan.scripts is not None:
        shutil.copytree(plan.scripts, layout.etc, dirs_exist_ok=True)
    for node in plan.nodes:
        (layout.spool / node.name).mkdir(parents=True)
        (layout.gpus / node.name).mkdir(parents=True)
        for number in range(node.gpu_count):
            (layout.gpus / node.name / f"gpu{number}").symlink_to(_DEVICE)
    key = layout.state / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    host = Host(user=user_name(), hostname=socket.gethostname(), ports=free_ports(2 + len(plan.nodes)))
    cluster_name = (
        "".join(character for character in layout.folder.name.lower() if character.isalnum())[:32] or "sandbox"
    )
    text = render_slurm_conf(plan, layout, installation, host, cluster_name)
    if plan.accounting:
        text += lay_out_accounting(layout, installation, host)
    layout.slurm_conf.write_text(text, encoding="utf-8")
    (layout.etc / "gres.conf").write_text(render_gres_conf(plan, layout), encoding="utf-8")
    (layout.etc / "cgroup.conf").write_text(render_cgroup_conf(installation.major_minor), encoding="utf-8")
    write_gpusage_toml(layout, "observe")
