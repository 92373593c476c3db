"""How a sandbox comes into being."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gpusage.sandboxes.host import free_ports, private_folder
from gpusage.sandboxes.progress import Report, silent
from gpusage_yarn.sandbox.cluster import Sandbox
from gpusage_yarn.sandbox.hadoop import Hadoop, prepare_hadoop
from gpusage_yarn.sandbox.layout import CLIENT, RESOURCE_MANAGER, ClusterPlan, Layout
from gpusage_yarn.sandbox.record import Record, write_record
from gpusage_yarn.sandbox.settings import (
    NODE_PORTS,
    RM_PORTS,
    client_files,
    node_files,
    render_gpusage_toml,
    rm_files,
)

_LONGEST_FOLDER = 80  # the socket of gpusaged lies in it


def start_sandbox(plan: ClusterPlan, *, folder: Path | None = None, report: Report = silent) -> Sandbox:
    """Return a new sandbox in *folder* (a temporary one where ``None``).

    Raises:
        RequestError: The folder is not empty, Hadoop cannot be had, or a daemon does not come up.
    """
    hadoop = prepare_hadoop(report=report)
    layout = Layout(folder=private_folder(folder, _LONGEST_FOLDER))
    sandbox = Sandbox(layout=layout, hadoop=hadoop, record=_lay_out(plan, layout, hadoop))
    try:
        report("start", 0, 1)
        sandbox.start()
        report("start", 1, 1)
    except BaseException:
        if not os.environ.get("GPUSAGE_KEEP_SANDBOX"):
            sandbox.down()
        raise
    return sandbox


def _lay_out(plan: ClusterPlan, layout: Layout, hadoop: Hadoop) -> Record:
    """Write everything that the daemons read."""
    ports = iter(free_ports(len(RM_PORTS) + len(NODE_PORTS) * len(plan.nodes)))
    rm_ports = [next(ports) for _ in RM_PORTS]
    node_ports = {node.name: [next(ports) for _ in NODE_PORTS] for node in plan.nodes}
    record = Record(
        hadoop=hadoop,
        rm_web_port=rm_ports[RM_PORTS.index(".webapp")],
        node_ports={name: numbers[0] for name, numbers in node_ports.items()},
        labels={node.name: node.gpu_type for node in plan.nodes if node.gpu_type in plan.labels},
    )
    write_record(layout, record)
    for folder in (layout.etc, layout.lib, layout.logs, layout.run, layout.jobs, layout.state, layout.temporary):
        folder.mkdir()
    for jar in (*((plan.jar,) if plan.jar else ()), *plan.further_jars):
        shutil.copy(jar, layout.lib)
    files = {RESOURCE_MANAGER: rm_files(plan, layout, rm_ports), CLIENT: client_files(plan, layout, rm_ports)}
    for node in plan.nodes:
        files[node.name] = node_files(plan, layout, node, node_ports[node.name], rm_ports)
    for name, texts in files.items():
        layout.conf(name).mkdir()
        (layout.temporary / name).mkdir()
        for file, text in texts.items():
            (layout.conf(name) / file).write_text(text, encoding="utf-8")
    (layout.etc / "gpusage.toml").write_text(render_gpusage_toml(layout), encoding="utf-8")
    return record
