"""A private, real YARN cluster in a folder: no root, no container, nothing left on the host."""

from gpusage_sandboxes.yarn.cluster import Sandbox, open_sandbox
from gpusage_sandboxes.yarn.creation import start_sandbox
from gpusage_sandboxes.yarn.hadoop import Hadoop, prepare_hadoop
from gpusage_sandboxes.yarn.layout import ClusterPlan, parse_nodes

__all__ = [
    "ClusterPlan",
    "Hadoop",
    "Sandbox",
    "open_sandbox",
    "parse_nodes",
    "prepare_hadoop",
    "start_sandbox",
]
