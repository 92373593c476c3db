"""A cluster as slurm.conf describes it, with all nodes free, for hosts where no Slurm answers.

Read from node lines: ``NodeName`` (also ``DEFAULT``), ``Gres``, ``Features``, ``CPUs`` or the counts that imply it, and
``RealMemory``; from partition lines: ``Nodes`` and ``Default``. A node set is resolved by its nodes and features.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from math import prod
from pathlib import Path

from gpusage_hooks.errors import RequestError
from gpusage_hooks.managers import GpuCatalogue
from gpusage_hooks.types import Cluster
from gpusage_slurm.cluster.hostlist import expand_hostlist
from gpusage_slurm.cluster.nodes import NodeState
from gpusage_slurm.cluster.pools import naming_notes, pools_of
from gpusage_slurm.install.slurm_conf import read_files
from gpusage_slurm.settings import MANAGER

_LINE = re.compile(r"^\s*(nodename|partitionname|nodeset)\s*=", re.IGNORECASE)
_PAIR = re.compile(r'(\w+)\s*=\s*("[^"]*"|\S+)')
_CORES = ("boards", "sockets", "corespersocket", "threadspercore")
_DEFAULT = "DEFAULT"
_MOST_DIGITS = 18
Settings = dict[str, str]


def cluster_of_slurm_conf(path: str, catalogue: GpuCatalogue) -> Cluster | None:
    """Return the cluster of the slurm.conf at *path* and the files it includes; ``None`` where it is no slurm.conf.

    Raises:
        RequestError: It has no node with a GPU, or names that cannot be understood.
    """
    if not path.endswith(".conf"):
        return None
    texts = read_files(Path(path))
    if not texts:
        message = f"File {path!r} must be a readable file; got none. Check the path."
        raise RequestError(message)

    # The settings of each line about nodes, node sets or partitions, by their names in lower case.
    lines = [
        {key.lower(): value.strip('"') for key, value in _PAIR.findall(line.partition("#")[0])}
        for text in texts.values()
        for line in text.replace("\\\n", " ").splitlines()
        if _LINE.match(line)
    ]
    partitions = [*_with_defaults(lines, "partitionname")]
    nodes = [*_nodes(lines, partitions)]
    pools = pools_of(nodes, catalogue)
    if not pools:
        message = f"File {path!r} must have a line NodeName=... Gres=gpu:...; got {len(nodes)} nodes without. Add it."
        raise RequestError(message)

    default = next((each["partitionname"] for each in partitions if each.get("default", "").upper() == "YES"), None)
    notes = naming_notes(pools, catalogue)
    return Cluster(manager=MANAGER, version="", pools=pools, default_partition=default, notes=notes)


def _with_defaults(lines: list[Settings], key: str) -> Iterator[Settings]:
    """Yield the lines of *key*, merged with the DEFAULT lines before them."""
    defaults: Settings = {}
    for line in lines:
        if line.get(key, "").upper() == _DEFAULT:
            defaults |= line
        elif key in line:
            yield defaults | line


def _nodes(lines: list[Settings], partitions: list[Settings]) -> Iterator[NodeState]:
    known = {name: line for line in _with_defaults(lines, "nodename") for name in expand_hostlist(line["nodename"])}

    # A node set has the nodes that it names, and those with its feature.
    sets = {
        line["nodeset"]: [
            *expand_hostlist(line.get("nodes", "")),
            *(name for name, node in known.items() if line.get("feature") in _features(node)),
        ]
        for line in _with_defaults(lines, "nodeset")
    }

    partitions_of = defaultdict[str, list[str]](list)
    for line in partitions:
        for listed in expand_hostlist(line.get("nodes", "")):
            for name in known if listed.upper() == "ALL" else sets.get(listed, [listed]):
                partitions_of[name].append(line["partitionname"])

    for name, line in known.items():
        # Without CPUs a node has as many as its counts imply.
        cpu_count = _number(line, "cpus") or _number(line, "procs")
        if "cpus" not in line and "procs" not in line:
            cpu_count = prod(_number(line, each) or 1 for each in _CORES)
        features = _features(line)

        # No Slurm answers here, so every node counts as idle, with all its GPUs free.
        yield NodeState(
            name=name,
            gres=line.get("gres", ""),
            gres_used="",
            features=features,
            possible_features=features,
            partitions=tuple(partitions_of[name]),
            idle=True,
            memory_mib=_number(line, "realmemory"),
            cpu_count=cpu_count,
        )


def _features(line: Settings) -> tuple[str, ...]:
    return tuple(word for word in (line.get("features") or line.get("feature") or "").split(",") if word)


def _number(line: Settings, name: str) -> int:
    text = line.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0
