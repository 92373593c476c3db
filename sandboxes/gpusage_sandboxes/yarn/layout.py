"""What a sandbox looks like: its nodes, and where everything of it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gpusage.settings.configuration import SiteMode
from gpusage_sandboxes.layout import Layout as AnyLayout
from gpusage_sandboxes.layout import SandboxNode, read_nodes
from gpusage_sandboxes.yarn.hadoop import Hadoop, Java

_MAX_NODES = 32

RESOURCE_MANAGER = "rm"
STANDBY = "standby"
"""A second ResourceManager, for whoever makes a pair of it by hand."""
CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What kind of cluster to bring up.

    Attributes:
        nodes: At least one. A node without a GPU carries no label; where none is without, applications that name no
            label go to the type of the first node.
        share_per_gpu: Units of the share that one GPU counts; 0 leaves the resource type out.
        whole_gpus: How many yarn.io/gpu each node with GPUs offers beside its shares.
        resource_types: Further ones, of other device plugins.
        queues: Below root, of equal capacity in every label.
        jar: Goes into the sandbox's lib folder, which is on the classpath of every daemon, client and container.
        further_jars: Likewise.
        site_settings: Further settings of every yarn-site.xml; they win over the sandbox's own.
        node_settings: Further settings of the NodeManagers' yarn-site.xml.
        scheduler_settings: Further settings of capacity-scheduler.xml.
        java_options: Further options of every daemon's Java.
        mode: What gpusage may do, by gpusage.toml; ``None`` leaves that out.
    """

    nodes: tuple[SandboxNode, ...]
    share_per_gpu: int = 100
    whole_gpus: int = 0
    resource_types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ("default",)
    jar: Path | None = None
    further_jars: tuple[Path, ...] = ()
    site_settings: Mapping[str, str] = field(default_factory=dict)
    node_settings: Mapping[str, str] = field(default_factory=dict)
    scheduler_settings: Mapping[str, str] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    mode: SiteMode | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The GPU types, in the nodes' order."""
        return tuple(dict.fromkeys(node.gpu_type for node in self.nodes if node.gpu_count))

    @property
    def default_label(self) -> str:
        """Where applications go that name no label; nothing where some node has none."""
        unlabelled = any(not node.gpu_count for node in self.nodes)
        return "" if unlabelled or not self.labels else self.labels[0]


class Layout(AnyLayout):
    """Where everything of one sandbox lies: in ``etc`` a folder per daemon and one for clients.

    A daemon's files end with the clients', so of a setting that stands in both the clients' wins.

    Attributes:
        lib: Jars on the classpath of every daemon and client, beside Hadoop's own.
        libexec: What every host has in ``/usr/libexec/gpusage``.
        temporary: A folder per daemon for what Java leaves behind when it is killed.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lib = folder / "lib"
        self.libexec = folder / "libexec"
        self.temporary = folder / "tmp"

    def conf(self, name: str) -> Path:
        """Return the configuration folder of *name*: a node's name, ``rm`` or ``client``."""
        return self.etc / name

    def container_logs(self, node: str) -> Path:
        """Return where the containers of *node* write: ``APPLICATION/CONTAINER/stdout``."""
        return self.logs / "containers" / node


def parse_nodes(text: str) -> tuple[SandboxNode, ...]:
    """Return the nodes that *text* describes: ``2xv100:4,1xcpu:0`` is two nodes of four V100 and one without a GPU.

    Raises:
        RequestError: *text* is not of this form, or describes more than a sandbox can hold.
    """
    return read_nodes(text, most_nodes=_MAX_NODES, fewest_gpus=0, example="2xv100:4,1xh100:8,1xcpu:0")


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
