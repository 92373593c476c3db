"""The nodes of a Slurm sandbox, its folders, and the text of its configuration files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpusage_sandboxes.layout import Layout as AnyLayout
from gpusage_sandboxes.layout import SandboxNode, read_nodes
from gpusage_sandboxes.slurm.installation import Installation

_CPUS_PER_GPU = 16
_MEMORY_MIB_PER_GPU = 64 * 1024
_MOST_NODES = 64
_LONGEST_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What kind of cluster to bring up.

    Attributes:
        nodes: At least one.
        mps_per_gpu: Units of gres/mps that one GPU counts; 0 leaves gres/mps out.
        settings: Lines to put at the end of slurm.conf, for example ``("PrologFlags=Alloc",)``.
        accounting: Whether slurmdbd, on a MariaDB of the sandbox's own, keeps its books.
    """

    nodes: tuple[SandboxNode, ...]
    mps_per_gpu: int = 100
    settings: tuple[str, ...] = ()
    accounting: bool = False

    @property
    def longest_folder(self) -> int:
        """The bytes that the path of the sandbox's folder may have: a socket's path, with a node's name in it twice."""
        name = max((node.name for node in self.nodes), key=len)
        return _LONGEST_SOCKET_PATH - len(f"/spool/{name}/{name}_999999.4294967295")


class Layout(AnyLayout):
    """Where everything of one sandbox lies.

    Attributes:
        slurm_conf: A plain file, to be edited.
        cluster_name: Slurm's name of the cluster.
        gpus: The files that stand for GPUs.
        spool: A folder per slurmd, with its sockets.
        libexec: What `gpusage slurm install` has its nodes run.
        munge_socket: Where Slurm finds munged.
        slurmdbd_conf: There where the sandbox keeps books.
        database_socket: Where slurmdbd finds its MariaDB.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.slurm_conf = self.etc / "slurm.conf"
        self.cluster_name = re.sub(r"[\W_]", "", folder.name.lower())[:32] or "sandbox"
        self.gpus = folder / "gpus"
        self.spool = folder / "spool"
        self.libexec = folder / "libexec"
        self.munge_socket = self.run / "munge.socket"
        self.slurmdbd_conf = self.etc / "slurmdbd.conf"
        self.database_socket = self.run / "mariadb.socket"


def parse_nodes(text: str) -> tuple[SandboxNode, ...]:
    """Return the nodes that *text* describes: ``2xv100:4,1xh100:8`` is two nodes of four V100 and one of eight H100.

    Raises:
        RequestError: *text* is not of this form, or describes more than a sandbox can hold.
    """
    return read_nodes(text, most_nodes=_MOST_NODES, fewest_gpus=1, example="2xv100:4,1xh100:8")


def render_gres_conf(plan: ClusterPlan, layout: Layout) -> str:
    """Return gres.conf: each node's GPUs, and their MPS units."""
    lines = []
    for node in plan.nodes:
        first = 0
        for gpu_type, count in ((node.gpu_type, node.gpu_count), *node.other_gpus):
            files = f"{layout.gpus}/{node.name}/gpu{_range(first, count)}"
            lines.append(f"NodeName={node.name} Name=gpu Type={gpu_type} File={files}")
            first += count
        if plan.mps_per_gpu and node.has_shares:
            files = f"{layout.gpus}/{node.name}/gpu{_range(0, node.gpu_count)}"
            units = node.gpu_count * plan.mps_per_gpu
            # Without the flag, one GPU of a node can be shared at a time.
            lines.append(f"NodeName={node.name} Name=mps Count={units} File={files} Flags=all_sharing")

    return "".join(f"{line}\n" for line in lines)


def render_cgroup_conf(slurm_version: tuple[int, int]) -> str:
    """Return cgroup.conf: no cgroups, in the words that each version of Slurm takes on any host.

    Before 23.11 there is no ``disabled``; ``cgroup/v1``, of which nothing is then used, starts on every host.
    """
    return "CgroupPlugin=disabled\n" if slurm_version >= (23, 11) else "CgroupPlugin=cgroup/v1\n"


def render_node(node: SandboxNode, plan: ClusterPlan, *, hostname: str, port: int) -> str:
    """Return *node*'s line of slurm.conf; CPUs and memory are claimed, not there."""
    gres = f"gpu:{node.gpu_type}:{node.gpu_count}" + "".join(f",gpu:{kind}:{count}" for kind, count in node.other_gpus)
    if plan.mps_per_gpu and node.has_shares:
        gres += f",mps:{node.gpu_count * plan.mps_per_gpu}"
    names = (node.gpu_type,) if node.features is None else node.features
    features = f" Features={','.join(names)}" if names else ""
    return (
        f"NodeName={node.name} NodeHostname={hostname} NodeAddr=127.0.0.1 Port={port} "
        f"CPUs={_CPUS_PER_GPU * node.gpu_count} RealMemory={_MEMORY_MIB_PER_GPU * node.gpu_count} "
        f"Gres={gres}{features} State=UNKNOWN"
    )


def _range(first: int, count: int) -> str:
    return f"[{first}-{first + count - 1}]" if count > 1 else str(first)


_TEMPLATE = """\
# A gpusage sandbox: a private cluster on one machine. Edit freely; then `scontrol reconfigure`.
ClusterName={cluster_name}
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={munge_socket}
PluginDir={plugins}
MailProg=/bin/true

StateSaveLocation={state}/slurmctld
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/%n.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/%n.log
SlurmctldDebug=info
SlurmdDebug=info

# No cgroups, no task plugin, no accounting daemon: nothing that needs root or touches the host.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2

# Quick rather than thrifty: a handful of jobs, somebody watching.
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1,bf_resolution=1,ignore_prefer_validation
KillWait=2
MinJobAge=86400
SlurmdTimeout=60

SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes={gres_types}

{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 OverSubscribe=NO State=UP
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a sandbox's configuration takes from the machine."""

    user: str
    hostname: str
    ports: Sequence[int]


def render_slurm_conf(plan: ClusterPlan, layout: Layout, installation: Installation, host: Host) -> str:
    """Return slurm.conf; the controller has the first of the host's ports, slurmdbd the last, each node one between."""
    nodes = [
        render_node(node, plan, hostname=host.hostname, port=port)
        for node, port in zip(plan.nodes, host.ports[1:-1], strict=True)
    ]
    text = _TEMPLATE.format(
        cluster_name=layout.cluster_name,
        hostname=host.hostname,
        controller_port=host.ports[0],
        user=host.user,
        munge_socket=layout.munge_socket,
        plugins=installation.plugins,
        state=layout.state,
        spool=layout.spool,
        run=layout.run,
        logs=layout.logs,
        gres_types="gpu,mps" if plan.mps_per_gpu else "gpu",
        nodes="\n".join(nodes),
    )
    return text + "".join(f"{line}\n" for line in plan.settings)
