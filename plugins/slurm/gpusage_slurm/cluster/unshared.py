"""Where a share can never start, as Slurm's own commands tell it.

* Partitions that give whole nodes: a job there gets all GPUs of its node, and a share is of one GPU only. On a node of
  two GPUs such a job waits for ever, with Reason=Resources, while its nodes are idle; on a node of one GPU it runs, and
  nobody else may share it. `sbatch --test-only` tells of neither. Partitions that keep users apart run shares.
* Reservations of GPUs: what they hold are whole ones. Those of nodes or cores run shares (tried on 26.05).
* A quality of service (QOS), a partition's too, that wants a GPU of each job, or allows a job less than one in shares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpusage_slurm.scontrol import Line

_WHOLE_NODES = (("OverSubscribe", "EXCLUSIVE"), ("ExclusiveTopo", "YES"), ("Exclusive", "NODE"), ("Exclusive", "TOPO"))
"""26.05 writes ``Exclusive=NODE`` where earlier ones write ``OverSubscribe=EXCLUSIVE``."""

_GPUS = re.compile(r"gres/gpu(?::[^=,]+)?=[1-9]\d*")
_QOS = re.compile(r"^QOS=", re.MULTILINE)
_LIMITS = re.compile(r"\b(MinTRESPJ|MaxTRESPJ|MaxTRESPN)=(\S+)")


def whole_node_partitions(partitions: Iterable[Line]) -> dict[str, str]:
    """Return the partitions that give whole nodes, each with why no GPU is shared there.

    Args:
        partitions: As `scontrol.partitions` returns them.
    """
    reasons = {}
    for partition in partitions:
        settings = [f"{key}={value}" for key, value in _WHOLE_NODES if partition.get(key, "").upper() == value]
        if settings:
            name = partition["PartitionName"]
            reasons[f"partition={name}"] = (
                f"partition {name} gives whole nodes ({settings[0]}), where a share may never start"
            )
    return reasons


def gpu_reservations(reservations: Iterable[Line]) -> dict[str, str]:
    """Return the reservations that hold GPUs and not whole nodes, each with why no GPU is shared there.

    Args:
        reservations: As `scontrol.reservations` returns them.
    """
    reasons = {}
    for reservation in reservations:
        name, held = reservation["ReservationName"], _GPUS.search(reservation.get("TRES", ""))
        if held:
            reasons[f"reservation={name}"] = f"reservation {name} holds whole GPUs ({held[0]}), where no share starts"
    return reasons


def limiting_qos(managed: str, whole_units: int) -> dict[str, str]:
    """Return each QOS that stops shares, with why.

    Args:
        managed: What `scontrol show assoc_mgr flags=qos` says.
        whole_units: How many units of gres/mps a whole GPU counts; a limit of so many stops no share.
    """
    reasons = {}
    for block in _QOS.split(managed)[1:]:
        name = block.partition("(")[0].strip()
        limits = [
            f"{kind}={word}"
            for kind, words in _LIMITS.findall(block)
            for word in words.split(",")
            if _stops(kind, word, whole_units)
        ]
        if name and limits:
            reasons[f"qos={name}"] = f"quality of service {name} stops shares ({limits[0]})"
    return reasons


def partitions_with(partitions: Iterable[Line], limiting: Mapping[str, str]) -> dict[str, str]:
    """Return the partitions whose own QOS is among *limiting*, each with why no GPU is shared there."""
    reasons = {each["PartitionName"]: limiting.get(f"qos={each.get('QoS', '')}") for each in partitions}
    return {f"partition={name}": f"partition {name}: {why}" for name, why in reasons.items() if why}


def joined(*mappings: Mapping[str, str]) -> dict[str, str]:
    """Return all that was *mappings* of each place, the reasons joined."""
    names = dict.fromkeys(name for one in mappings for name in one)
    return {name: "; ".join(one[name] for one in mappings if name in one) for name in names}


def _stops(kind: str, limit: str, whole_units: int) -> bool:
    resource, _, count = limit.partition("=")
    if not count.isdecimal():
        return False
    if kind == "MinTRESPJ":
        return resource.startswith("gres/gpu") and int(count) > 0
    return resource.startswith("gres/mps") and int(count) < whole_units
