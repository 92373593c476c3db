"""A slurm.conf as a cluster."""

from __future__ import annotations

from os import mkfifo
from pathlib import Path

import pytest

from gpusage.devices.catalogue import builtin_catalogue
from gpusage_hooks.errors import RequestError
from gpusage_slurm.cluster.from_slurm_conf import cluster_of_slurm_conf

CONF = """
ClusterName=site
GresTypes=gpu,mps
Include nodes.conf
NodeSet=old Feature=v100
PartitionName=DEFAULT State=UP
PartitionName=gpu Nodes=gpu[01-02],old Default=YES
PartitionName=big Nodes=ALL
"""
NODES = """
NodeName=DEFAULT Sockets=2 CoresPerSocket=16 \\
  ThreadsPerCore=2 RealMemory=512000
NodeName=gpu[01-02] Gres=gpu:a100:4,mps:a100:400 Features=a100,ib  # two
NodeName=gpu03 CPUs=8 Gres=gpu:V100:2 Feature=v100
NodeName=cpu[1-100] CPUs=64
"""


def write(folder: Path, nodes: str = NODES) -> str:
    (folder / "nodes.conf").write_text(nodes)
    (folder / "slurm.conf").write_text(CONF)
    return str(folder / "slurm.conf")


def test_nodes_become_pools_of_free_gpus(tmp_path: Path) -> None:
    cluster = cluster_of_slurm_conf(write(tmp_path), builtin_catalogue())
    assert cluster is not None
    assert cluster.default_partition == "gpu"
    new, old = cluster.pools
    assert (new.site_type, new.gpu, new.gpu_count, new.free_gpu_count) == ("a100", "a100-sxm4-40gb", 8, 8)
    assert (new.mps_per_gpu, new.exact_feature, new.partitions) == (100, "a100", ("big", "gpu"))
    assert (old.gpu_count, old.mps_per_gpu, old.partitions) == (2, None, ("big", "gpu"))
    assert (new.node_gpu_counts, old.node_gpu_counts) == ((4,), (2,))
    (kind,) = new.node_kinds
    assert (kind.cpu_count, kind.host_memory_bytes) == (64, 512_000 * 2**20)


def test_nodes_of_one_type_may_have_several_numbers_of_gpus(tmp_path: Path) -> None:
    nodes = "NodeName=gpu[1-3] Gres=gpu:a100:8\nNodeName=gpu4 Gres=gpu:a100:4\nNodeName=gpu5 Gres=gpu:a100:0\n"
    cluster = cluster_of_slurm_conf(write(tmp_path, nodes), builtin_catalogue())
    assert cluster is not None
    assert [(pool.gpu_count, pool.node_gpu_counts) for pool in cluster.pools] == [(28, (4, 8))]


def test_other_files_are_left_to_others(tmp_path: Path) -> None:
    assert cluster_of_slurm_conf(str(tmp_path / "cluster.json"), builtin_catalogue()) is None


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("NodeName=cpu1 CPUs=4\n", "must have a line NodeName=.* got 1 nodes without"),
        ("NodeName=gpu[x] Gres=gpu:1\n", "must have in brackets"),
    ],
)
def test_what_has_no_gpus_or_names_is_refused(tmp_path: Path, nodes: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        cluster_of_slurm_conf(write(tmp_path, nodes), builtin_catalogue())


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="readable file"):
        cluster_of_slurm_conf(str(tmp_path / "slurm.conf"), builtin_catalogue())


def test_what_would_be_waited_for_is_refused(tmp_path: Path) -> None:
    conf = write(tmp_path)
    (tmp_path / "nodes.conf").unlink()
    mkfifo(tmp_path / "nodes.conf")
    with pytest.raises(RequestError, match="regular file"):
        cluster_of_slurm_conf(conf, builtin_catalogue())


def test_a_number_without_end_is_none(tmp_path: Path) -> None:
    cluster = cluster_of_slurm_conf(
        write(tmp_path, f"NodeName=n1 Gres=gpu:a100:1 RealMemory={'9' * 5000}"), builtin_catalogue()
    )
    assert cluster is not None
    assert cluster.pools[0].node_kinds[0].host_memory_bytes == 0


def test_who_has_no_shares_reads_which_lines_to_write(tmp_path: Path) -> None:
    nodes = "NodeName=a[1-2] Gres=gpu:a100:4\nNodeName=h1 Gres=gpu:h100:1\nNodeName=m1 Gres=gpu:a100_1g.5gb:7\n"
    cluster = cluster_of_slurm_conf(write(tmp_path, nodes), builtin_catalogue())
    assert cluster is not None
    assert [pool.node_names for pool in cluster.pools] == [("a1", "a2"), ("h1",), ("m1",)]
    (note,) = cluster.notes
    assert note.startswith("To share a100, h100: GresTypes=gpu,mps in slurm.conf; on each node with 1 ',mps:100'")
    assert "'Name=mps Count=400 File=/dev/nvidia[0-3] Flags=all_sharing'" in note
    shared = nodes.replace("a100:4", "a100:4,mps:400").replace("h100:1", "h100:1,mps:100")
    cluster = cluster_of_slurm_conf(write(tmp_path, shared), builtin_catalogue())
    assert cluster is not None
    assert not any("To share" in note for note in cluster.notes)
