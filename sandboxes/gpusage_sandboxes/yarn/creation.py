"""How a sandbox of YARN comes into being."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from gpusage_sandboxes.gpusaged import write_gpusage_toml
from gpusage_sandboxes.host import Report, free_ports, lock, private_folder, silent
from gpusage_sandboxes.layout import write_record
from gpusage_sandboxes.sandbox import down_on_failure
from gpusage_sandboxes.yarn.cluster import Sandbox
from gpusage_sandboxes.yarn.hadoop import Hadoop, listing_options, make_archive, prepare_hadoop
from gpusage_sandboxes.yarn.layout import CLIENT, RESOURCE_MANAGER, ClusterPlan, Layout, Record, parse_nodes
from gpusage_sandboxes.yarn.settings import NODE_PORTS, RM_PORTS, client_files, node_files, rm_files

_LONGEST_FOLDER = 80  # the socket of gpusaged lies in it


def start_sandbox(plan: ClusterPlan, *, folder: Path | None = None, report: Report = silent) -> Sandbox:
    """Return a new sandbox in *folder* (a temporary one where ``None``).

    Raises:
        RequestError: The folder is not empty, Hadoop cannot be had, or a daemon does not come up.
    """
    hadoop = prepare_hadoop(report=report)
    if not hadoop.class_archive.is_file() and os.access(hadoop.folder, os.W_OK):
        _warm_up(hadoop, report)
    return _start(plan, private_folder(folder, _LONGEST_FOLDER), hadoop, report)


def _start(plan: ClusterPlan, folder: Path, hadoop: Hadoop, report: Report) -> Sandbox:
    layout = Layout(folder=folder)
    sandbox = Sandbox(layout=layout, record=_lay_out(plan, layout, hadoop))
    with down_on_failure(sandbox, report):
        sandbox.start()
    return sandbox


def _warm_up(hadoop: Hadoop, report: Report) -> None:
    """Run a small cluster once to learn which classes its daemons use, for all that come later."""
    with lock(hadoop.class_archive), TemporaryDirectory(prefix="gpusage-classes-") as name:
        if hadoop.class_archive.is_file():  # another process may have made it while this one waited
            return
        report("warm up", 0, 2)
        lists = Path(name)
        plan = ClusterPlan(nodes=parse_nodes("1xcpu:0"), java_options=listing_options(lists))
        with _start(plan, private_folder(None, _LONGEST_FOLDER), hadoop, silent) as sandbox:
            sandbox.stop_nm("cpu-1")
            sandbox.stop_rm()
        report("warm up", 1, 2)
        make_archive(hadoop, lists)
        report("warm up", 2, 2)


def _lay_out(plan: ClusterPlan, layout: Layout, hadoop: Hadoop) -> Record:
    """Write everything that the daemons read."""
    ports = iter(free_ports(len(RM_PORTS) + len(NODE_PORTS) * len(plan.nodes)))
    rm_ports = [next(ports) for _ in RM_PORTS]
    node_ports = {node.name: [next(ports) for _ in NODE_PORTS] for node in plan.nodes}
    record = Record(
        version=hadoop.version,
        hadoop_folder=str(hadoop.folder),
        java_home=str(hadoop.java.home),
        maven=str(hadoop.java.maven),
        rm_web_port=rm_ports[RM_PORTS.index(".webapp")],
        node_ports={name: numbers[0] for name, numbers in node_ports.items()},
        labels={node.name: node.gpu_type for node in plan.nodes if node.gpu_type in plan.labels},
        java_options=plan.java_options,
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

    write_gpusage_toml(layout, plan.mode)
    return record
