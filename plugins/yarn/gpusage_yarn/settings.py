"""YARN as a manager, and its section of gpusage.toml. gpusaged's time limit is a setting of the ResourceManager."""

from __future__ import annotations

from dataclasses import dataclass

from gpusage_hooks.managers import Manager, ManagerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnSettings(ManagerSettings):
    """Where the YARN adapter finds its ResourceManager, and the name of its resource type.

    Attributes:
        rm_urls: ResourceManagers, for example ``http://rm1:8088``; none means those of Hadoop's own configuration.
        conf_dir: The folder of Hadoop's configuration; empty for the one that HADOOP_CONF_DIR names, else
            ``/etc/hadoop/conf``.
        share_resource: The resource type of which one shared GPU has 100.
        gpu_type: What the GPUs of all nodes are, where no node has a label.
    """

    rm_urls: tuple[str, ...] = ()
    conf_dir: str = ""
    share_resource: str = "gpusage.io/share"
    gpu_type: str = ""


YARN = Manager(name="yarn", title="YARN", settings=YarnSettings)
MANAGER = YARN.name
