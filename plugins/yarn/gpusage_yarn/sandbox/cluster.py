"""A running sandbox: brought up in seconds, entered, used, and taken down without a trace.

Invariants:

1. Everything lies in one folder that was empty or not there before, and is gone afterwards.
2. Every process carries the folder's name in a variable of its environment; that is how leftovers are found.
3. A daemon is one process; its id stands in ``run/NAME.pid``, what it says in ``log/NAME.log``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusage.sandboxes import processes
from gpusage.sandboxes.guard import dismiss, start_guard
from gpusage.sandboxes.host import user_name
from gpusage.sandboxes.inside import Inside
from gpusage_hooks.errors import RequestError
from gpusage_yarn.sandbox import daemons, rest
from gpusage_yarn.sandbox.hadoop import Hadoop
from gpusage_yarn.sandbox.layout import CLIENT, RESOURCE_MANAGER, Layout
from gpusage_yarn.sandbox.record import Record, read_record
from gpusage_yarn.sandbox.settings import MARK

_START_LIMIT_S = 90.0
_POLL_S = 0.05
_REGISTERED = "Registered with ResourceManager as"
_GRACE_S = 10.0
_LEFTOVER_GRACE_S = 2.0
_MOST_SWEEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """One private cluster; a context manager that takes it down, also where its process is killed meanwhile."""

    layout: Layout
    hadoop: Hadoop
    record: Record
    guards: list[subprocess.Popen[bytes]] = field(default_factory=list, repr=False, compare=False)

    def __enter__(self) -> Sandbox:  # noqa: PYI034 - typing.Self is younger than Python 3.10
        command = (sys.executable, "-m", "gpusage.cli", "yarn", "sandbox", "down", "--folder", str(self.layout.folder))
        self.guards.append(start_guard(self.layout.record, command))
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def rm_url(self) -> str:
        """The ResourceManager's web address, for example ``http://127.0.0.1:18088``."""
        return f"http://127.0.0.1:{self.record.rm_web_port}"

    @property
    def logs(self) -> Path:
        """Where the daemons write; the containers below it, a folder a node."""
        return self.layout.logs

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to be inside: Hadoop's commands, their configuration, and ours."""
        return daemons.environment(self.layout, self.hadoop, CLIENT)

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
            complaint_characters=500,  # a Java complaint ends with what matters
        )
        return inside.run(command, check=check, timeout_s=timeout_s)

    def java_client(
        self, main_class: str, *arguments: str, check: bool = True, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a Java program with the clients' configuration, the sandbox's lib folder and Hadoop's jars."""
        return self.run("yarn", main_class, *arguments, check=check, timeout_s=timeout_s)

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """Return the ResourceManager's document at ``/ws/v1/cluster/path``, ``None`` where it does not answer."""
        return rest.get(self.record.rm_web_port, path)

    def nodes(self) -> list[str]:
        """Return the nodes' names."""
        return list(self.record.node_ports)

    def node_id(self, name: str) -> str:
        """Return what the ResourceManager calls the node *name*, for example ``localhost:21034``."""
        port = self.record.node_ports[name]
        return next(str(node["id"]) for node in self._registered() if node["id"].endswith(f":{port}"))

    def start(self) -> None:
        """Start the ResourceManager and all NodeManagers, wait for them, and give the nodes their labels.

        Raises:
            RequestError: One of them does not come up.
        """
        self.launch(RESOURCE_MANAGER)
        for name in self.nodes():
            self.launch(name)
        self.wait_for_rm()
        self.wait_for_nodes()
        self.label_nodes()

    def start_rm(self) -> None:
        """Start the ResourceManager, and wait until it answers and every running NodeManager has come back."""
        self.launch(RESOURCE_MANAGER)
        self.wait_for_rm()
        self.wait_for_nodes(name for name in self.nodes() if self.pid(name))

    def start_nm(self, name: str) -> None:
        """Start the NodeManager *name*, and wait until it has registered."""
        self.launch(name)
        self.wait_for_nodes([name])

    def kill_rm(self) -> None:
        """End the ResourceManager as a power cut would."""
        self._stop(RESOURCE_MANAGER, 0.0)

    def kill_nm(self, name: str) -> None:
        """End a NodeManager as a power cut would; its containers go on."""
        self._stop(name, 0.0)

    def stop_rm(self) -> None:
        """Stop the ResourceManager as an admin would."""
        self._stop(RESOURCE_MANAGER, _GRACE_S)

    def stop_nm(self, name: str) -> None:
        """Stop a NodeManager as an admin would."""
        self._stop(name, _GRACE_S)

    def restart(self) -> None:
        """Stop every daemon, and start them with the configuration as it is now."""
        for name in [*self.nodes(), RESOURCE_MANAGER]:
            self._stop(name, _GRACE_S)
        self.start()

    def pid(self, daemon: str) -> int | None:
        """Return the process id of a daemon, ``None`` where it does not run."""
        return processes.read_pid(self.layout.pid_file(daemon))

    def launch(self, daemon: str) -> None:
        """Start the process of *daemon*, and wait for nothing.

        Raises:
            RequestError: It runs already.
        """
        if self.pid(daemon):
            message = f"Daemon {daemon} must not run yet; it does, as process {self.pid(daemon)}. Stop it first."
            raise RequestError(message)
        daemons.start(self.layout, self.hadoop, daemon, self.record.java_options)

    def wait_for_rm(self) -> None:
        """Wait until the ResourceManager works."""
        self._wait(lambda: _state(self.get("info")) == "STARTED", "the ResourceManager answers", [RESOURCE_MANAGER])

    def wait_for_nodes(self, names: Iterable[str] | None = None) -> None:
        """Wait until the NodeManagers *names* (all where ``None``) have registered since they and the RM started."""
        wanted = list(self.nodes() if names is None else names)
        self._wait(lambda: self._ready(wanted), "every node has registered", [RESOURCE_MANAGER, *wanted])

    def wait_for(self, condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
        """Wait until *condition* holds.

        Raises:
            RequestError: It does not within *timeout_s*.
        """
        self._wait(lambda: bool(condition()), what, [], timeout_s)

    def label_nodes(self) -> None:
        """Make the labels, and give each node its own; both are kept over restarts."""
        labels, port = self.record.labels, self.record.rm_web_port
        if not labels:
            return
        infos = [{"name": label, "exclusivity": True} for label in dict.fromkeys(labels.values())]
        rest.post(port, "add-node-labels", {"nodeLabelInfo": infos}, user_name())
        entries = [{"nodeId": self.node_id(name), "labels": [label]} for name, label in labels.items()]
        rest.post(port, "replace-node-to-labels", {"nodeToLabels": entries}, user_name())

    def down(self) -> None:
        """End every container and daemon, and remove the folder."""
        for name in [*self.nodes(), RESOURCE_MANAGER]:
            self._stop(name, 0.0)
        for _ in range(_MOST_SWEEPS):  # a process that is ended may just have begun another
            processes.end(self.processes(), grace_s=_LEFTOVER_GRACE_S)
        shutil.rmtree(self.layout.folder, ignore_errors=True)
        while self.guards:
            dismiss(self.guards.pop())

    def processes(self) -> list[int]:
        """Return the ids of all that runs in the sandbox, this process and those above it left out."""
        return processes.find(f"{MARK}={self.layout.folder}", self.layout.state, Path("/"))

    def _stop(self, daemon: str, grace_s: float) -> None:
        pid = self.pid(daemon)
        if pid is None:
            return
        if grace_s:
            processes.end([pid], grace_s=grace_s)
        else:
            processes.kill([pid])
        self.layout.pid_file(daemon).unlink(missing_ok=True)

    def _registered(self) -> list[dict[str, Any]]:
        document = self.get("nodes") or {}
        return (document.get("nodes") or {}).get("node") or []

    def _ready(self, names: Iterable[str]) -> bool:
        running = {node["id"].rpartition(":")[2] for node in self._registered() if node["state"] == "RUNNING"}
        ports = {str(self.record.node_ports[name]) for name in names}
        return ports <= running and all(_REGISTERED in daemons.said(self.layout, name) for name in names)

    def _wait(
        self, condition: Callable[[], bool], what: str, needed: Iterable[str], timeout_s: float = _START_LIMIT_S
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            dead = next((name for name in needed if not self.pid(name)), None)
            if dead or time.monotonic() > deadline_s:
                found = f"{dead} ended: {daemons.complaint(daemons.said(self.layout, dead))}" if dead else "it did not"
                message = (
                    f"The sandbox must reach within {timeout_s:g} s that {what}; got: {found}. Look into {self.logs}."
                )
                raise RequestError(message)
            time.sleep(_POLL_S)


def _state(document: Any) -> str:  # noqa: ANN401 - JSON
    return str(((document or {}).get("clusterInfo") or {}).get("state", ""))


def open_sandbox(folder: Path) -> Sandbox:
    """Return the sandbox in *folder*.

    Raises:
        RequestError: There is none.
    """
    layout = Layout(folder=folder.absolute())
    record = read_record(layout)
    if record is None:
        message = f"Folder {str(folder)!r} must hold a sandbox; got none. Start one: gpusage yarn sandbox up."
        raise RequestError(message)
    return Sandbox(layout=layout, hadoop=record.hadoop, record=record)
