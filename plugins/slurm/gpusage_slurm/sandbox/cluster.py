"""A running sandbox: brought up in seconds, entered, used, and taken down without a trace.

Invariants:

1. Everything lies in one folder that was empty or not there before, and is gone afterwards.
2. Every process carries the folder's SLURM_CONF in its environment, or is a program of Slurm that works in the folder;
   that is how leftovers are found.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpusage.sandboxes import processes
from gpusage.sandboxes.guard import dismiss, start_guard
from gpusage.sandboxes.host import free_ports, private_folder, require_own, user_name
from gpusage.sandboxes.inside import Inside
from gpusage.sandboxes.progress import Report, silent
from gpusage_hooks.errors import RequestError
from gpusage_slurm.sandbox.installation import Installation, prepare_installation, read_installation
from gpusage_slurm.sandbox.layout import ClusterPlan, Layout, render_cgroup_conf, render_gpusage_toml, render_gres_conf
from gpusage_slurm.sandbox.slurm_conf import Host, render_slurm_conf

_SCHEMA = "gpusage.slurm-sandbox/1"
_START_LIMIT_S = 60.0
_QUEUE_LIMIT_S = 5.0
_POLL_S = 0.05
_LEFTOVER_GRACE_S = 2.0
_MOST_SWEEPS = 3
_DEVICE = "/dev/null"  # a character device that every Linux has; the sandbox's GPUs are links to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """One private cluster; a context manager that takes it down, also where its process is killed meanwhile."""

    layout: Layout
    installation: Installation
    guards: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False, compare=False)

    def __enter__(self) -> Sandbox:  # noqa: PYI034 - typing.Self is younger than Python 3.10
        command = (sys.executable, "-m", "gpusage.cli", "slurm", "sandbox", "down", "--folder", str(self.layout.folder))
        self.guards.append(start_guard(self.layout.record, command))
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to be inside: Slurm's commands, their configuration, Lua's modules, and ours."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        path = os.pathsep.join([str(self.installation.programs), str(Path(sys.executable).parent), own.get("PATH", "")])
        return {
            **own,
            "PATH": path,
            "SLURM_CONF": str(self.layout.slurm_conf),
            "GPUSAGE_CONFIG": str(self.layout.etc / "gpusage.toml"),
            **self.installation.lua_environment(),
        }

    def run(
        self, *command: str, check: bool = True, timeout_s: float = 60.0, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run *command* inside and return what it said.

        Raises:
            RequestError: It failed, and *check* is true; or it took longer than *timeout_s*.
        """
        inside = Inside(
            environment={**self.environment, **(environment or {})},
            folder=self.layout.jobs,
            logs=self.logs,
        )
        return inside.run(command, check=check, timeout_s=timeout_s)

    @property
    def logs(self) -> Path:
        """Where the daemons write."""
        return self.layout.logs

    def start(self) -> None:
        """Start munged, slurmctld and a slurmd for each node, and wait until all nodes answer.

        Raises:
            RequestError: One of them does not come up.
        """
        layout = self.layout
        self.run(
            "munged",
            f"--socket={layout.munge_socket}",
            f"--key-file={layout.state}/munge.key",
            f"--pid-file={layout.pid_file('munged')}",
            f"--log-file={layout.log_file('munged')}",
            f"--seed-file={layout.state}/munge.seed",
            "--force",
            "--num-threads=2",
        )
        self.start_controller()
        for name in self.nodes():
            self.start_node(name)
        self.wait_for_nodes()

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self.run("slurmctld")
        self._wait(lambda: "is UP" in self.run("scontrol", "ping", check=False).stdout, "slurmctld answers")

    def start_node(self, name: str) -> None:
        """Start the slurmd of the node *name*."""
        stepd = next(self.installation.root.glob("usr/sbin/slurmstepd*"))
        self.run("slurmd", "-N", name, "-d", str(stepd))

    def nodes(self) -> list[str]:
        """Return the nodes' names."""
        text = self.layout.slurm_conf.read_text(encoding="utf-8")
        lines = [line.split()[0] for line in text.splitlines() if line.startswith("NodeName=")]
        return [line.partition("=")[2] for line in lines]

    def wait_for_nodes(self) -> None:
        """Wait until every node can take jobs."""
        ready = {"idle", "mixed", "allocated"}
        self._wait(lambda: {*self.run("sinfo", "-hN", "-o", "%T").stdout.split()} <= ready, "every node is idle")

    def reconfigure(self) -> None:
        """Make slurmctld and the slurmds read their configuration anew."""
        self.run("scontrol", "reconfigure")
        self._wait(lambda: "is UP" in self.run("scontrol", "ping", check=False).stdout, "slurmctld answers")
        self.wait_for_nodes()

    def restart_controller(self) -> None:
        """Stop slurmctld as an admin would, and start it again."""
        pid = processes.read_pid(self.layout.pid_file("slurmctld"))
        processes.end([pid] if pid else [])
        self.start_controller()

    def wait_for_queue(self, timeout_s: float = 60.0) -> None:
        """Wait until no job waits or runs."""
        self._wait(lambda: not self.run("squeue", "-h").stdout.strip(), "the queue is empty", timeout_s)

    def down(self) -> None:
        """End every job and daemon, and remove the folder."""
        processes.resume(self.processes())
        if processes.read_pid(self.layout.pid_file("slurmctld")):
            with suppress(RequestError):  # a job that does not end is ended below, with everything else
                self.run("scancel", f"--user={user_name()}", check=False, timeout_s=_QUEUE_LIMIT_S)
                self.wait_for_queue(_QUEUE_LIMIT_S)
        daemons = [path.stem for path in self.layout.run.glob("*.pid")]
        for name in sorted(daemons, key=lambda name: (name == "munged", name == "slurmctld")):
            pid = processes.read_pid(self.layout.pid_file(name))
            processes.end([pid] if pid else [])
        for _ in range(_MOST_SWEEPS):  # a process that is ended may just have begun another
            processes.end(self.processes(), grace_s=_LEFTOVER_GRACE_S)
        shutil.rmtree(self.layout.folder, ignore_errors=True)
        while self.guards:
            dismiss(self.guards.pop())

    def processes(self) -> list[int]:
        """Return the ids of all that runs in the sandbox, this process and those above it left out."""
        mark = f"SLURM_CONF={self.layout.slurm_conf}"
        return processes.find(mark, self.layout.folder.resolve(), self.installation.root.resolve())

    def _wait(self, condition: Callable[[], bool], what: str, timeout_s: float = _START_LIMIT_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            fatal = self._fatal()
            if fatal or time.monotonic() > deadline_s:
                found = fatal or "it did not"
                message = (
                    f"The sandbox must reach within {timeout_s:g} s that {what}; got: {found}. Look into {self.logs}."
                )
                raise RequestError(message)
            time.sleep(_POLL_S)

    def _fatal(self) -> str:
        """Return the last words of a daemon that died of something."""
        for log in sorted(self.logs.glob("*.log")):
            last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
            if "fatal: " in last:
                return last.partition("fatal: ")[2].rstrip(".")
        return ""


def start_sandbox(
    plan: ClusterPlan, *, folder: Path | None = None, release: str | None = None, report: Report = silent
) -> Sandbox:
    """Return a new sandbox in *folder* (a temporary one where ``None``) of *release* (the host's own where ``None``).

    Raises:
        RequestError: The folder is not empty, the release cannot be had, or a daemon does not come up.
    """
    installation = prepare_installation(release, report=report)
    layout = Layout(folder=private_folder(folder, plan.longest_folder))
    sandbox = Sandbox(layout=layout, installation=installation)
    try:
        report("start", 0, 1)
        _lay_out(plan, sandbox)
        sandbox.start()
        report("start", 1, 1)
    except BaseException:
        if not os.environ.get("GPUSAGE_KEEP_SANDBOX"):
            sandbox.down()
        raise
    return sandbox


def open_sandbox(folder: Path) -> Sandbox:
    """Return the sandbox in *folder*.

    Raises:
        RequestError: There is none.
    """
    layout = Layout(folder=folder.absolute())
    try:
        require_own(layout.folder)
        record = json.loads(layout.record.read_text(encoding="utf-8"))
        installation = read_installation(Path(record["installation"])) if record["schema"] == _SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        installation = None
    if installation is None:
        message = f"Folder {str(folder)!r} must hold a sandbox; got none. Start one: gpusage slurm sandbox up."
        raise RequestError(message)
    return Sandbox(layout=layout, installation=installation)


def _lay_out(plan: ClusterPlan, sandbox: Sandbox) -> None:
    """Write everything that the daemons read."""
    layout, installation = sandbox.layout, sandbox.installation
    record = {"schema": _SCHEMA, "installation": str(installation.folder)}
    layout.record.write_text(json.dumps(record), encoding="utf-8")
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
    host = Host(user=user_name(), hostname=socket.gethostname(), ports=free_ports(1 + len(plan.nodes)))
    cluster_name = "".join(letter for letter in layout.folder.name.lower() if letter.isalnum())[:32] or "sandbox"
    text = render_slurm_conf(plan, layout, installation, host, cluster_name)
    layout.slurm_conf.write_text(text, encoding="utf-8")
    (layout.etc / "gres.conf").write_text(render_gres_conf(plan, layout), encoding="utf-8")
    (layout.etc / "cgroup.conf").write_text(render_cgroup_conf(installation.major_minor), encoding="utf-8")
    (layout.etc / "gpusage.toml").write_text(render_gpusage_toml(layout), encoding="utf-8")
