"""A running Slurm in a folder: its daemons, its nodes, its queue.

Every process carries the folder's SLURM_CONF in its environment, or is a program of Slurm that works in the folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpusage.boundary.operating_system import user_name
from gpusage_hooks.errors import RequestError
from gpusage_sandboxes import processes
from gpusage_sandboxes.layout import no_sandbox, read_record
from gpusage_sandboxes.sandbox import START_LIMIT_S
from gpusage_sandboxes.sandbox import Sandbox as AnySandbox
from gpusage_sandboxes.slurm.accounting import start_accounting
from gpusage_sandboxes.slurm.installation import Installation, read_installation
from gpusage_sandboxes.slurm.layout import Layout
from gpusage_slurm.settings import MANAGER
from gpusage_slurm.usage.node import usage_folder

_QUEUE_LIMIT_S = 5.0
_GRACE_S = 5.0
_LAST = ("slurmctld", "slurmdbd", "mariadbd", "munged")
"""The order in which daemons end after all others."""


class Record(msgspec.Struct, frozen=True, kw_only=True, tag="gpusage.slurm-sandbox/1", tag_field="schema"):
    """What a sandbox has to know of itself: the folder of its Slurm."""

    installation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox(AnySandbox):
    """One private Slurm."""

    manager = MANAGER
    layout: Layout
    installation: Installation

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to be inside: Slurm's commands, their configuration, Lua's modules, and ours."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        path = os.pathsep.join([str(self.installation.programs), str(Path(sys.executable).parent), own.get("PATH", "")])
        return {
            **own,
            "PATH": path,
            "SLURM_CONF": str(self.layout.slurm_conf),
            "GPUSAGE_CONFIG": str(self.layout.gpusage_toml),
            "GPUSAGE_LIBEXEC": str(self.layout.libexec),
            "MYSQL_UNIX_PORT": str(self.layout.database_socket),
            **self.installation.lua_environment(),
        }

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
        if layout.slurmdbd_conf.exists():
            start_accounting(self, self.installation, layout)
        self.start_controller()

        for name in self.nodes():
            self.start_node(name)
        self.wait_for_nodes()

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self.run("slurmctld")
        self.wait_for(lambda: "is UP" in self.run("scontrol", "ping", check=False).stdout, "slurmctld answers")

    def start_node(self, name: str) -> None:
        """Start the slurmd of the node *name*."""
        self.run("slurmd", "-N", name, "-d", str(self.installation.slurmstepd))

    def nodes(self) -> list[str]:
        """Return the nodes' names."""
        text = self.layout.slurm_conf.read_text(encoding="utf-8")
        lines = [line.split()[0] for line in text.splitlines() if line.startswith("NodeName=")]
        return [line.partition("=")[2] for line in lines]

    def wait_for_nodes(self) -> None:
        """Wait until every node can take jobs."""
        ready = {"idle", "mixed", "allocated"}
        self.wait_for(lambda: {*self.run("sinfo", "-hN", "-o", "%T").stdout.split()} <= ready, "every node is idle")

    def reconfigure(self) -> None:
        """Make slurmctld and the slurmds read their configuration anew."""
        self.run("scontrol", "reconfigure")
        self.wait_for(lambda: "is UP" in self.run("scontrol", "ping", check=False).stdout, "slurmctld answers")
        self.wait_for_nodes()

    def restart_controller(self) -> None:
        """Stop slurmctld as an admin would, and start it again; it saves its state, however long that takes."""
        self._end("slurmctld", grace_s=START_LIMIT_S)
        self.start_controller()

    def wait_for_queue(self, timeout_s: float = START_LIMIT_S) -> None:
        """Wait until no job waits or runs."""
        self.wait_for(lambda: not self.run("squeue", "-h").stdout.strip(), "the queue is empty", timeout_s)

    def end_daemons(self) -> None:
        """Cancel every job, and end the daemons: slurmctld after the nodes, munged last."""
        processes.resume(self.processes())
        if self.pid("slurmctld"):
            with suppress(RequestError):  # a job that does not end is ended by `down`, with everything else
                self.run("scancel", f"--user={user_name()}", check=False, timeout_s=_QUEUE_LIMIT_S)
                self.wait_for_queue(_QUEUE_LIMIT_S)

        daemons = [path.stem for path in self.layout.run.glob("*.pid")]
        for name in sorted(daemons, key=lambda name: _LAST.index(name) if name in _LAST else -1):
            self._end(name)

    def down(self) -> None:
        """End every job and daemon, and remove the folder, and what samplers left of its nodes elsewhere."""
        AnySandbox.down(self)
        for file in usage_folder().glob(f"{self.layout.cluster_name}.*"):
            file.unlink(missing_ok=True)

    def processes(self) -> list[int]:
        """Return the ids of all that runs in the sandbox, this process and those above it left out."""
        mark = f"SLURM_CONF={self.layout.slurm_conf}"
        return processes.find(mark, self.layout.folder.resolve(), self.installation.root.resolve())

    def last_words(self, daemons: Iterable[str]) -> str:
        """Return what any daemon called fatal, whatever *daemons* are."""
        del daemons
        for log in sorted(self.logs.glob("*.log")):
            last_line = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
            if "fatal: " in last_line:
                return last_line.partition("fatal: ")[2].rstrip(".")
        return ""

    def _end(self, daemon: str, grace_s: float = _GRACE_S) -> None:
        pid = self.pid(daemon)
        processes.end([pid] if pid else [], grace_s=grace_s)


def open_sandbox(folder: Path) -> Sandbox:
    """Return the sandbox in *folder*.

    Raises:
        RequestError: There is none.
    """
    layout = Layout(folder=folder.absolute())
    installation = read_installation(Path(read_record(layout, Record, MANAGER).installation))
    if installation is None:
        raise no_sandbox(layout, MANAGER)
    return Sandbox(layout=layout, installation=installation)
