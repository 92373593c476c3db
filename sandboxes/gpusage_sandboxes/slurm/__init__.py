"""A private, real Slurm cluster in a folder: no root, no container, nothing left on the host."""

from gpusage_sandboxes.slurm.cluster import Sandbox, open_sandbox
from gpusage_sandboxes.slurm.creation import start_sandbox
from gpusage_sandboxes.slurm.installation import Installation, prepare_installation
from gpusage_sandboxes.slurm.layout import ClusterPlan, parse_nodes

__all__ = [
    "ClusterPlan",
    "Installation",
    "Sandbox",
    "open_sandbox",
    "parse_nodes",
    "prepare_installation",
    "start_sandbox",
]
