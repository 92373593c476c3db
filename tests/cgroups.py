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
from gpusage_sandboxes.layout import SandboxNode
from gpusage_sandboxes.slurm import ClusterPlan, Sandbox
from mps import STANDINS
from slurm_jobs import first_job_number


def unified_folder() -> Path | None:
    """Return where this host has cgroup v2; ``None`` where no test can use it."""
    for folder in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (folder / "cgroup.controllers").exists() and os.access(folder, os.W_OK) and shutil.which("cc"):
            return folder
    return None


def plan_of_own(gpu_type: str, gpu_count: int) -> ClusterPlan:
    """Return a plan of one node whose name, and so whose folder of cgroups, no other sandbox of this host has."""
    name = f"{gpu_type}-{random.randrange(1 << 32):08x}"
    return ClusterPlan(nodes=(SandboxNode(name=name, gpu_type=gpu_type, gpu_count=gpu_count),))


def use_cgroups(sandbox: Sandbox, unified: Path) -> None:
    """Restart *sandbox*, which has one node, so that each of its jobs has a cgroup below *unified*.

    The jobs' numbers begin anywhere (`first_job_number`).
    """
    layout = sandbox.layout
    settings = ("CgroupPlugin=cgroup/v2", f"CgroupMountpoint={unified}", "IgnoreSystemd=yes")
    (layout.etc / "cgroup.conf").write_text("".join(f"{line}\n" for line in settings))
    text = layout.slurm_conf.read_text().replace("proctrack/linuxproc", "proctrack/cgroup")
    layout.slurm_conf.write_text(f"{text}{first_job_number()}\n")
    library = layout.state / "unified_cgroups.so"
    source = STANDINS / "unified_cgroups.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    sandbox.restart_controller()
    for node in sandbox.nodes():
        restart_node(sandbox, node, unified)
    sandbox.wait_for_nodes()


def restart_node(sandbox: Sandbox, node: str, unified: Path) -> None:
    """End the slurmd of *node*, if it runs, and start it so that its jobs have cgroups."""
    pid = sandbox.pid(node)
    processes.end([pid] if pid else [], grace_s=10)
    preload = {"LD_PRELOAD": str(sandbox.layout.state / "unified_cgroups.so")}
    sandbox.run("slurmd", "-N", node, "-d", str(sandbox.installation.slurmstepd), environment=preload)
    # Where systemd starts it, slurmd is in no folder of the jobs; those of 24.11 would be below its own.
    scope = unified / "system.slice" / f"{node}_slurmstepd.scope"
    own = scope / "slurmd" / "cgroup.procs"
    sandbox.wait_for(lambda: own.exists() and str(sandbox.pid(node)) in own.read_text().split(), "slurmd has a cgroup")
    (scope / "cgroup.procs").write_text(str(sandbox.pid(node)))


def remove_cgroups(unified: Path, node: str) -> None:
    """Remove the cgroups of *node*, whose sandbox is down."""
    for folder, _, _ in os.walk(unified / "system.slice" / f"{node}_slurmstepd.scope", topdown=False):
        Path(folder).rmdir()
