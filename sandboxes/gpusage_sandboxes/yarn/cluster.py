"""A running YARN in a folder: its ResourceManager, its nodes, their labels.

Every process carries the folder's name in a variable of its environment. A daemon is one process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from gpusage.boundary.operating_system import user_name
from gpusage_hooks.errors import RequestError
from gpusage_sandboxes import processes
from gpusage_sandboxes.layout import read_record
from gpusage_sandboxes.sandbox import START_LIMIT_S
from gpusage_sandboxes.sandbox import Sandbox as AnySandbox
from gpusage_sandboxes.yarn.hadoop import Hadoop
from gpusage_sandboxes.yarn.layout import CLIENT, RESOURCE_MANAGER, STANDBY, Layout, Record
from gpusage_sandboxes.yarn.settings import MARK
from gpusage_yarn.settings import MANAGER

_RM_CLASS = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_CLASS = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_RM_HEAP = "-Xmx384m"
_NODE_HEAP = "-Xmx128m"
_OPTIONS = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",  # Hadoop's Guice defines classes
    "-XX:TieredStopAtLevel=1",  # quick to start rather than quick
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",  # leaves a file in the machine's own temporary folder
)
_START = "-- start\n"
_EXCEPTION = re.compile(r"^(?:Caused by: |Exception in thread \S+ )?([\w.$]+(?:Exception|Error)\b.*)", re.MULTILINE)


def start_daemon(layout: Layout, hadoop: Hadoop, daemon: str, options: Sequence[str] = ()) -> None:
    """Start the process of *daemon*, note its id, and wait for nothing."""
    resource_manager = daemon in {RESOURCE_MANAGER, STANDBY}
    command = [
        str(hadoop.java.program),
        _RM_HEAP if resource_manager else _NODE_HEAP,
        *_OPTIONS,
        *options,
        f"-XX:SharedArchiveFile={hadoop.class_archive}",
        f"-Djava.io.tmpdir={layout.temporary / daemon}",
        "-classpath",
        f"{hadoop.classpath}:{layout.lib}/*:{layout.conf(daemon)}",  # the class archive wants Hadoop first
        _RM_CLASS if resource_manager else _NODE_CLASS,
    ]

    with layout.log_file(daemon).open("a", encoding="utf-8") as log:
        log.write(_START)
    started = subprocess.run(
        ["sh", "-c", 'setsid "$@" >>"$0" 2>&1 </dev/null & echo $!', str(layout.log_file(daemon)), *command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=layout.folder,
        env=environment_of(layout, hadoop, daemon),
    )
    layout.pid_file(daemon).write_text(started.stdout.strip(), encoding="ascii")


def environment_of(layout: Layout, hadoop: Hadoop, name: str) -> dict[str, str]:
    """Return the environment of a daemon, or of a client where *name* is that."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("HADOOP_", "YARN_"))}
    path = [hadoop.programs, hadoop.java.program.parent, Path(sys.executable).parent, own.get("PATH", "")]
    return {
        **own,
        **hadoop.environment(),
        "PATH": os.pathsep.join(map(str, path)),
        "HADOOP_CONF_DIR": str(layout.conf(name)),
        "YARN_CONF_DIR": str(layout.conf(name)),
        "HADOOP_CLASSPATH": f"{layout.lib}/*",
        "HADOOP_CLIENT_OPTS": f"-Duser.home={layout.jobs} -Djava.io.tmpdir={layout.temporary} "
        "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "GPUSAGE_CONFIG": str(layout.etc / "gpusage.toml"),
        "GPUSAGE_LIBEXEC": str(layout.libexec),
        MARK: str(layout.folder),
    }


def read_last_log(layout: Layout, daemon: str) -> str:
    """Return what *daemon* has written since it was last started."""
    log = layout.log_file(daemon)
    return log.read_text(encoding="utf-8", errors="replace").rpartition(_START)[2] if log.is_file() else ""


def last_exception(text: str) -> str:
    """Return the last exception that a daemon's *text* names."""
    exceptions = _EXCEPTION.findall(text)
    return " ".join(exceptions[-1].split())[:300].rstrip(".") if exceptions else "no reason given"


_REGISTERED = "Registered with ResourceManager as"
_GRACE_S = 10.0
_TIMEOUT_S = 10.0
_FIRST_ERROR = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox(AnySandbox):
    """One private YARN."""

    manager = MANAGER
    layout: Layout
    record: Record

    @property
    def hadoop(self) -> Hadoop:
        """What it runs."""
        return self.record.hadoop

    @property
    def rm_url(self) -> str:
        """The ResourceManager's web address, for example ``http://127.0.0.1:18088``."""
        return f"http://127.0.0.1:{self.record.rm_web_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to be inside: Hadoop's commands, their configuration, and ours."""
        return environment_of(self.layout, self.hadoop, CLIENT)

    def java_client(
        self, main_class: str, *arguments: str, check: bool = True, timeout_s: float = START_LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a Java program with the clients' configuration, the sandbox's lib folder and Hadoop's jars."""
        return self.run("yarn", main_class, *arguments, check=check, timeout_s=timeout_s)

    def get(self, path: str) -> Any:  # JSON
        """Return the ResourceManager's document at ``/ws/v1/cluster/path``, ``None`` where it does not answer."""
        return get_document(self.record.rm_web_port, path)

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

    def launch(self, daemon: str) -> None:
        """Start the process of *daemon*, and wait for nothing.

        Raises:
            RequestError: It runs already.
        """
        if self.pid(daemon):
            message = f"Daemon {daemon} must not run yet; it does, as process {self.pid(daemon)}. Stop it first."
            raise RequestError(message)
        start_daemon(self.layout, self.hadoop, daemon, self.record.java_options)

    def wait_for_rm(self) -> None:
        """Wait until the ResourceManager works."""
        self.wait_for(
            lambda: _state(self.get("info")) == "STARTED", "the ResourceManager answers", daemons=[RESOURCE_MANAGER]
        )

    def wait_for_nodes(self, names: Iterable[str] | None = None) -> None:
        """Wait until the NodeManagers *names* (all where ``None``) have registered since they and the RM started."""
        expected = list(self.nodes() if names is None else names)
        self.wait_for(lambda: self._ready(expected), "every node has registered", daemons=[RESOURCE_MANAGER, *expected])

    def label_nodes(self) -> None:
        """Make the labels, and give each node its own; both are kept over restarts."""
        labels, port = self.record.labels, self.record.rm_web_port
        if not labels:
            return
        infos = [{"name": label, "exclusivity": True} for label in dict.fromkeys(labels.values())]
        post_document(port, "add-node-labels", {"nodeLabelInfo": infos}, user_name())
        entries = [{"nodeId": self.node_id(name), "labels": [label]} for name, label in labels.items()]
        post_document(port, "replace-node-to-labels", {"nodeToLabels": entries}, user_name())

    def end_daemons(self) -> None:
        """End every daemon as a power cut would."""
        for name in [*self.nodes(), RESOURCE_MANAGER]:
            self._stop(name, 0.0)

    def processes(self) -> list[int]:
        """Return the ids of all that runs in the sandbox, this process and those above it left out."""
        return processes.find(f"{MARK}={self.layout.folder}", self.layout.state, Path("/"))

    def last_words(self, daemons: Iterable[str]) -> str:
        """Return the last exception of the first of *daemons* that does not run."""
        dead = next((name for name in daemons if not self.pid(name)), None)
        return f"{dead} ended: {last_exception(read_last_log(self.layout, dead))}" if dead else ""

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
        return ports <= running and all(_REGISTERED in read_last_log(self.layout, name) for name in names)


def _state(document: Any) -> str:  # JSON
    return str(((document or {}).get("clusterInfo") or {}).get("state", ""))


def open_sandbox(folder: Path) -> Sandbox:
    """Return the sandbox in *folder*.

    Raises:
        RequestError: There is none.
    """
    layout = Layout(folder=folder.absolute())
    return Sandbox(layout=layout, record=read_record(layout, Record, MANAGER))


def get_document(port: int, path: str) -> Any:  # JSON
    """Return the document at ``/ws/v1/cluster/path``, ``None`` where nobody answers with one.

    A ResourceManager that has just started answers with pages that are no documents.
    """
    try:
        status, text = _exchange(port, "GET", path, "")
        return json.loads(text) if status < _FIRST_ERROR else None
    except (OSError, HTTPException, ValueError):
        return None


def post_document(port: int, path: str, document: object, user: str) -> None:
    """Send *document* as *user*.

    Raises:
        RequestError: It is refused, or nobody answers.
    """
    try:
        status, text = _exchange(port, "POST", f"{path}?user.name={user}", json.dumps(document))
    except (OSError, HTTPException) as error:
        status, text = _FIRST_ERROR, str(error)
    if status >= _FIRST_ERROR:
        output = " ".join(text.split())[:300]
        message = f"ResourceManager must take {path}; got status {status}: {output}. Look into its log."
        raise RequestError(message)


def _exchange(port: int, method: str, path: str, body: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        connection.request(method, f"/ws/v1/cluster/{path}", body=body or None, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()
