"""What a sandbox of YARN has to know of itself."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpusage_yarn.sandbox.hadoop import Hadoop
from gpusage_yarn.sandbox.java import Java


class Record(msgspec.Struct, frozen=True, kw_only=True, tag="gpusage.yarn-sandbox/1", tag_field="schema"):
    """Fixed once the sandbox has been laid out.

    Attributes:
        version: Of Hadoop.
        hadoop_folder: Where Hadoop lies.
        java_home: Where Java lies.
        maven: The program.
        rm_web_port: Where the ResourceManager answers over HTTP.
        node_ports: Each node's port, by which the ResourceManager knows it, by name.
        labels: The label of each node that has one, by name.
        java_options: Further options of every daemon's Java.
    """

    version: str
    hadoop_folder: str = msgspec.field(name="hadoop")
    java_home: str = msgspec.field(name="java")
    maven: str
    rm_web_port: int
    node_ports: dict[str, int]
    labels: dict[str, str]
    java_options: tuple[str, ...] = ()

    @property
    def hadoop(self) -> Hadoop:
        """What it runs."""
        java = Java(home=Path(self.java_home), maven=Path(self.maven))
        return Hadoop(version=self.version, folder=Path(self.hadoop_folder), java=java)
