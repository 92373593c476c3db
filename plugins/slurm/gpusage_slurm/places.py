"""Where a share can never start, as Slurm's own commands tell it: partitions that give whole nodes.

A job there gets all GPUs of its node, and a share is of one GPU only. On a node of two GPUs such a job waits for ever,
with Reason=Resources, while its nodes are idle; on a node of one GPU it runs, and nobody else may share it.
`sbatch --test-only` tells of neither. Partitions that keep users apart (ExclusiveUser) run shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_WHOLE_NODES = (("OverSubscribe", "EXCLUSIVE"), ("ExclusiveTopo", "YES"), ("Exclusive", "NODE"), ("Exclusive", "TOPO"))
"""26.05 writes ``Exclusive=NODE`` where earlier ones write ``OverSubscribe=EXCLUSIVE``."""


def whole_node_partitions(partitions: str) -> dict[str, str]:
    """Return the partitions that give whole nodes, each with why no GPU is shared there.

    Args:
        partitions: What `scontrol show partitions --oneliner` says.
    """
    found = {}
    for words in _described(partitions):
        settings = [f"{key}={value}" for key, value in _WHOLE_NODES if words.get(key, "").upper() == value]
        if settings:
            name = words["PartitionName"]
            found[name] = f"partition {name} gives whole nodes ({settings[0]}), where a share may never start"
    return found


def joined(*found: Mapping[str, str]) -> dict[str, str]:
    """Return all that was *found* of each place, the reasons joined."""
    names = dict.fromkeys(name for one in found for name in one)
    return {name: "; ".join(one[name] for one in found if name in one) for name in names}


def _described(partitions: str) -> Iterator[dict[str, str]]:
    for line in partitions.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "PartitionName" in words:
            yield words
