"""The daemons of a sandbox as processes: how they are started, and their words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpusage_sandboxes.yarn.hadoop import Hadoop
from gpusage_sandboxes.yarn.layout import RESOURCE_MANAGER, STANDBY, Layout
from gpusage_sandboxes.yarn.settings import MARK

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
