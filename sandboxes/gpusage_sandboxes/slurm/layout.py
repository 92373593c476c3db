"""What a sandbox looks like: its nodes, its folders, and the text of its configuration files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpusage_sandboxes.layout import Layout as AnyLayout
from gpusage_sandboxes.nodes import SandboxNode, read_nodes

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
        all_sharing: Whether all GPUs of a node can be shared at once; Slurm's own default is one of them.
        settings: Lines to put at the end of slurm.conf, for example ``("PrologFlags=Alloc",)``.
        scripts: A folder whose files are copied beside slurm.conf; ``job_submit.lua``, ``cli_filter.lua`` and
            ``task_prolog.sh`` among them are switched on.
        accounting: Whether slurmdbd, on a MariaDB of the sandbox's own, keeps its books.
    """

    nodes: tuple[SandboxNode, ...]
    mps_per_gpu: int = 100
    all_sharing: bool = True
    settings: tuple[str, ...] = ()
    scripts: Path | None = None
    accounting: bool = False

    @property
    def longest_folder(self) -> int:
        """The bytes that the path of the sandbox's folder may have: a socket's path, with a node's name in it twice."""
        name = max((node.name for node in self.nodes), key=len)
        return _LONGEST_SOCKET_PATH - len(f"/spool/{name}/{name}_999999.4294967295")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(AnyLayout):
    """Where everything of one sandbox lies."""

    @property
    def slurm_conf(self) -> Path:
        """A plain file, to be edited."""
        return self.etc / "slurm.conf"

    @property
    def gpus(self) -> Path:
        """The files that stand for GPUs."""
        return self.folder / "gpus"

    @property
    def spool(self) -> Path:
        """A folder per slurmd, with its sockets."""
        return self.folder / "spool"

    @property
    def libexec(self) -> Path:
        """What `gpusage slurm install` has its nodes run."""
        return self.folder / "libexec"

    @property
    def munge_socket(self) -> Path:
        """Where Slurm finds munged."""
        return self.run / "munge.socket"

    @property
    def slurmdbd_conf(self) -> Path:
        """There where the sandbox keeps books."""
        return self.etc / "slurmdbd.conf"

    @property
    def database_socket(self) -> Path:
        """Where slurmdbd finds its MariaDB."""
        return self.run / "mariadb.socket"


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
        files = f"{layout.gpus}/{node.name}/gpu{_range(node.gpu_count)}"
        lines.append(f"NodeName={node.name} Name=gpu Type={node.gpu_type} File={files}")
        if plan.mps_per_gpu:
            units = node.gpu_count * plan.mps_per_gpu
            flags = " Flags=all_sharing" if plan.all_sharing else ""
            lines.append(f"NodeName={node.name} Name=mps Count={units} File={files}{flags}")
    return "".join(f"{line}\n" for line in lines)


def render_cgroup_conf(slurm_version: tuple[int, int]) -> str:
    """Return cgroup.conf: no cgroups, in the words that each version of Slurm takes on any host.

    Before 23.11 there is no ``disabled``; ``cgroup/v1``, of which nothing is then used, starts on every host.
    """
    return "CgroupPlugin=disabled\n" if slurm_version >= (23, 11) else "CgroupPlugin=cgroup/v1\n"


def render_node(node: SandboxNode, plan: ClusterPlan, *, hostname: str, port: int) -> str:
    """Return *node*'s line of slurm.conf; CPUs and memory are claimed, not there."""
    gres = f"gpu:{node.gpu_type}:{node.gpu_count}"
    if plan.mps_per_gpu:
        gres += f",mps:{node.gpu_count * plan.mps_per_gpu}"
    return (
        f"NodeName={node.name} NodeHostname={hostname} NodeAddr=127.0.0.1 Port={port} "
        f"CPUs={_CPUS_PER_GPU * node.gpu_count} RealMemory={_MEMORY_MIB_PER_GPU * node.gpu_count} "
        f"Gres={gres} Features={node.gpu_type} State=UNKNOWN"
    )


def _range(count: int) -> str:
    return f"[0-{count - 1}]" if count > 1 else "0"
