"""Jobs in cgroups of version 2, as the kernel has them, on a sandbox's Slurm: for tests of walls.

A host needs a writable cgroup v2, beside v1 or alone, and a C compiler; `unified_folder` returns ``None`` elsewhere.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

from gpusage_sandboxes import processes
from gpusage_sandboxes.slurm import Sandbox
from mps import STANDINS

SETTINGS = ("ProctrackType=proctrack/cgroup",)
"""Lines of slurm.conf for `ClusterPlan`."""


def unified_folder() -> Path | None:
    """Return where this host has cgroup v2; ``None`` where no test can use it."""
    for folder in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (folder / "cgroup.controllers").exists() and os.access(folder, os.W_OK) and shutil.which("cc"):
            return folder
    return None


def use_cgroups(sandbox: Sandbox, unified: Path) -> None:
    """Restart *sandbox* so that each of its jobs has a cgroup below *unified*, in a folder of the sandbox's own.

    The jobs' numbers begin anywhere: sandboxes of one host take each other's jobs for theirs.
    """
    layout = sandbox.layout
    group = unified / layout.folder.name
    group.mkdir()
    settings = ("CgroupPlugin=cgroup/v2", f"CgroupMountpoint={group}", "IgnoreSystemd=yes")
    (layout.etc / "cgroup.conf").write_text("".join(f"{line}\n" for line in settings))
    text = layout.slurm_conf.read_text().replace("proctrack/linuxproc", "proctrack/cgroup")
    layout.slurm_conf.write_text(f"{text}FirstJobId={random.randrange(10_000, 50_000_000)}\n")
    library = layout.state / "unified_cgroups.so"
    source = STANDINS / "unified_cgroups.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    sandbox.restart_controller()
    for node in sandbox.nodes():
        restart_node(sandbox, node)
    sandbox.wait_for_nodes()


def restart_node(sandbox: Sandbox, node: str) -> None:
    """End the slurmd of *node*, if it runs, and start it so that its jobs have cgroups."""
    pid = sandbox.pid(node)
    processes.end([pid] if pid else [], grace_s=10)
    preload = {"LD_PRELOAD": str(sandbox.layout.state / "unified_cgroups.so")}
    sandbox.run("slurmd", "-N", node, "-d", str(sandbox.installation.slurmstepd), environment=preload)


def remove_cgroups(sandbox: Sandbox, unified: Path) -> None:
    """Remove what `use_cgroups` made; the sandbox is down."""
    group = unified / sandbox.layout.folder.name
    for folder, _, _ in os.walk(group, topdown=False):
        Path(folder).rmdir()
