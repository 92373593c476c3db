"""What a sandbox has to know of itself, kept in its folder for those who open it later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpusage.sandboxes.host import require_own
from gpusage_yarn.sandbox.hadoop import Hadoop
from gpusage_yarn.sandbox.java import Java
from gpusage_yarn.sandbox.layout import Layout

_SCHEMA = "gpusage.yarn-sandbox/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Fixed once the sandbox has been laid out.

    Attributes:
        hadoop: What it runs.
        rm_web_port: Where the ResourceManager answers over HTTP.
        node_ports: Each node's port, by which the ResourceManager knows it, by name.
        labels: The label of each node that has one, by name.
        java_options: Further options of every daemon's Java.
    """

    hadoop: Hadoop
    rm_web_port: int
    node_ports: Mapping[str, int]
    labels: Mapping[str, str]
    java_options: tuple[str, ...] = ()


def write_record(layout: Layout, record: Record) -> None:
    """Make the folder a sandbox."""
    document = {
        "schema": _SCHEMA,
        "version": record.hadoop.version,
        "hadoop": str(record.hadoop.folder),
        "java": str(record.hadoop.java.home),
        "maven": str(record.hadoop.java.maven),
        "rm_web_port": record.rm_web_port,
        "node_ports": dict(record.node_ports),
        "labels": dict(record.labels),
        "java_options": list(record.java_options),
    }
    layout.record.write_text(json.dumps(document, indent=1), encoding="utf-8")


def read_record(layout: Layout) -> Record | None:
    """Return what the folder says, ``None`` where it is no sandbox.

    Raises:
        RequestError: The folder is another user's.
    """
    try:
        require_own(layout.folder)
        document = json.loads(layout.record.read_text(encoding="utf-8"))
        if document["schema"] != _SCHEMA:
            return None
        java = Java(home=Path(document["java"]), maven=Path(document["maven"]))
        return Record(
            hadoop=Hadoop(version=document["version"], folder=Path(document["hadoop"]), java=java),
            rm_web_port=document["rm_web_port"],
            node_ports=document["node_ports"],
            labels=document["labels"],
            java_options=tuple(document["java_options"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
