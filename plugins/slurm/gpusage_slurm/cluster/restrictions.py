"""Partitions, reservations and QOS in which a share could never start or would lose something; GPUs stay whole there.

* Partitions that allocate whole nodes: a job gets all GPUs of its node, and a share lies on one GPU only. On a node
  with two GPUs such a job pends for ever with Reason=Resources while its nodes are idle; on a node with one GPU it
  runs, and nobody else can share that GPU. `sbatch --test-only` detects neither. Partitions that keep users apart do
  run shares.
* Reservations of GPUs hold whole GPUs. Reservations of nodes or cores run shares (tried on 26.05).
* A QOS, also that of a partition, that requires a GPU of each job or limits a job to less than one GPU in shares.
* A QOS or partition whose jobs others may preempt. A job that needs a whole GPU would preempt all shares on one, and
  Slurm does so one after another: three shares in 24 s, where one job with a whole GPU goes at once (tried on 24.11).
* Clusters with a backup controller before Slurm 26.05: after a takeover every node has gres/mps:0. On 22.05.8 shares
  then pend for ever; on 24.11.5 the nodes become INVAL. Plain Slurm does the same; on 26.05.5 shares survive (tried).
* Slurm before 23.11.5, unless the site accepts that it books GPUs twice. Tried on 22.05.8, without gpusage: once one of
  a GPU's shares ends, the GPU goes to a job that asks for a whole one. 24.11.5 counts the other shares.
* Partitions with defaults per GPU. Tried on 22.05: with DefCpuPerGPU=4 a job with one GPU gets 4 CPUs; as a share,
  which counts as no GPU, it gets 1. With DefMemPerGPU it gets the site's other default: too little kills it, and a
  whole node's memory keeps others out. A partition's own defaults replace slurm.conf's, key by key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from gpusage_hooks.types import GpuPool
from gpusage_slurm.cluster.billing import SHARES, is_gpu_resource
from gpusage_slurm.cluster.limits import PER_JOB
from gpusage_slurm.scontrol import Line, release

_WHOLE_NODES = (("OverSubscribe", "EXCLUSIVE"), ("ExclusiveTopo", "YES"), ("Exclusive", "NODE"), ("Exclusive", "TOPO"))
"""26.05 writes ``Exclusive=NODE`` where earlier ones write ``OverSubscribe=EXCLUSIVE``."""

# Tried: 22.05.8 and 24.11.5 lose the shares at a takeover, 26.05.5 keeps them.
_KEEPS_UNITS = (26, 5)
# By Slurm's changelog, the first that never allocates a GPU together with shares of it.
_COUNTS_SHARES = (23, 11, 5)
_BOOKED_TWICE = "Slurm before 23.11.5 books a GPU twice once a share on it ends"

_GPUS = re.compile(r"gres/gpu(?::[^=,]+)?=[1-9]\d*")
_PREEMPTED = "jobs {} preempt those {}, and each share would free only a part of a GPU"

_PER_GPU_DEFAULTS = ("defcpupergpu", "defmempergpu")
_LOST_DEFAULTS = "a share would lose what partition {} gives for each GPU ({})"


def whole_node_partitions(partitions: Iterable[Line]) -> dict[str, str]:
    """Return the partitions that allocate whole nodes, each with the reason against shares.

    Args:
        partitions: As `scontrol.partitions` returns them.
    """
    reasons = {}
    for partition in partitions:
        name = partition["PartitionName"]
        settings = [f"{key}={value}" for key, value in _WHOLE_NODES if partition.get(key, "").upper() == value]
        if settings:
            why = f"partition {name} gives whole nodes ({settings[0]}), where a share may never start"
            reasons[f"partition={name}"] = why
    return reasons


def without_backup(settings: Mapping[str, str], partitions: Iterable[Line]) -> dict[str, str]:
    """Return every partition with the reason, if a backup controller would lose its shares.

    Args:
        settings: slurmctld's, by their names in lower case.
        partitions: As `scontrol.partitions` returns them.
    """
    running, backup = release(settings), settings.get("slurmctldhost[1]", "")
    if not backup or running is None or running >= _KEEPS_UNITS:
        return {}
    why = f"a backup controller ({backup}) that takes over has no gres/mps, before Slurm 26.05"
    return {f"partition={each['PartitionName']}": why for each in partitions}


def books_gpus_twice(settings: Mapping[str, str]) -> bool:
    """Return whether slurmctld, by its *settings*, may start a job with a whole GPU on a GPU that has shares.

    Once one of the shares ends, the others are not counted, for further shares either. That job is nobody's to send
    back, and nothing else keeps it off.
    """
    running = release(settings)
    return running is not None and running < _COUNTS_SHARES


def booked_twice(settings: Mapping[str, str], partitions: Iterable[Line]) -> dict[str, str]:
    """Return every partition with the reason, if slurmctld books GPUs twice that have shares."""
    names = [each["PartitionName"] for each in partitions] if books_gpus_twice(settings) else []
    return {f"partition={name}": _BOOKED_TWICE for name in names}


def gpu_reservations(reservations: Iterable[Line]) -> dict[str, str]:
    """Return the reservations that hold GPUs rather than nodes, each with the reason against shares.

    Args:
        reservations: As `scontrol.reservations` returns them.
    """
    reasons = {}
    for reservation in reservations:
        name, held = reservation["ReservationName"], _GPUS.search(reservation.get("TRES", ""))
        if held:
            reasons[f"reservation={name}"] = f"reservation {name} holds whole GPUs ({held[0]}), where no share starts"
    return reasons


def limiting_qos(rows: Iterable[Line], units_per_gpu: int) -> dict[str, str]:
    """Return each QOS that stops shares, with the reason.

    Args:
        rows: Of the QOS, as `limits.Books` has them.
        units_per_gpu: How many units of gres/mps a whole GPU counts; a limit of so many stops no share.
    """
    reasons: dict[str, str] = {}
    for row in rows:
        for kind in ("MinTRES", *PER_JOB):
            for word in row.get(kind, "").split(","):
                resource, _, count = word.partition("=")
                number = int(count) if count.isdecimal() else None

                # A share counts as no GPU, and a limit below a GPU's units is below what some share needs.
                needs_gpu = kind == "MinTRES" and is_gpu_resource(resource) and bool(number)
                allows_less = kind != "MinTRES" and resource.startswith(SHARES)
                if needs_gpu or (allows_less and number is not None and number < units_per_gpu):
                    why = f"quality of service {row['Name']} stops shares ({kind}={word})"
                    reasons.setdefault(f"qos={row['Name']}", why)
    return reasons


def preemptable_qos(rows: Iterable[Line], settings: Mapping[str, str]) -> dict[str, str]:
    """Return each QOS whose jobs those of another may preempt, with the reason.

    Args:
        rows: Of the QOS, as `limits.Books` has them.
        settings: slurmctld's, by their names in lower case.
    """
    if settings.get("preempttype") != "preempt/qos":
        return {}
    rows = tuple(rows)
    above = {victim: row["Name"] for row in rows for victim in row.get("Preempt", "").split(",") if victim}

    # With WITHIN a job may preempt another of the same QOS.
    everywhere = settings.get("preemptmode", "")
    above |= {row["Name"]: row["Name"] for row in rows if "WITHIN" in f"{everywhere},{row.get('PreemptMode')}".upper()}
    return {
        f"qos={name}": _PREEMPTED.format(f"of quality of service {other}", f"of quality of service {name}")
        for name, other in above.items()
    }


def preemptable_partitions(
    partitions: Sequence[Line], pools: Iterable[GpuPool], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return each partition whose jobs those of another on the same GPUs may preempt, with the reason.

    Args:
        partitions: As `scontrol.partitions` returns them.
        pools: The cluster's.
        settings: slurmctld's, by their names in lower case.
    """
    if settings.get("preempttype") != "preempt/partition_prio":
        return {}
    tiers = {each["PartitionName"]: int(each.get("PriorityTier", "1")) for each in partitions}
    modes = {each["PartitionName"]: each.get("PreemptMode", "").upper() for each in partitions}
    reasons = {}
    for names in {kind.partitions for pool in pools for kind in pool.node_kinds}:
        highest = max((name for name in names if name in tiers), key=lambda name: tiers[name], default="")
        for name in names:
            if name in tiers and tiers[name] < tiers[highest] and modes[name] != "OFF":
                why = _PREEMPTED.format(f"in partition {highest}", f"in partition {name}")
                reasons[f"partition={name}"] = why
    return reasons


def partitions_with(partitions: Iterable[Line], limiting: Mapping[str, str]) -> dict[str, str]:
    """Return the partitions whose own QOS is among *limiting*, each with the reason against shares."""
    reasons = {each["PartitionName"]: limiting.get(f"qos={each.get('QoS', '')}") for each in partitions}
    return {f"partition={name}": f"partition {name}: {why}" for name, why in reasons.items() if why}


def join_reasons(*mappings: Mapping[str, str]) -> dict[str, str]:
    """Return the union of *mappings*, with the reasons for the same place joined."""
    names = dict.fromkeys(name for one in mappings for name in one)
    return {name: "; ".join(one[name] for one in mappings if name in one) for name in names}


def per_gpu_default_partitions(settings: Mapping[str, str], partitions: Iterable[Line]) -> dict[str, str]:
    """Return the partitions where a share would lose defaults per GPU, each with the reason.

    Args:
        settings: slurmctld's, by their names in lower case.
        partitions: As `scontrol.partitions` returns them.
    """
    # A partition's own defaults replace slurm.conf's key by key.
    everywhere = _defaults(settings.get("jobdefaults", ""))
    reasons = {}
    for partition in partitions:
        name, defaults = partition["PartitionName"], everywhere | _defaults(partition.get("JobDefaults", ""))
        if defaults:
            reasons[f"partition={name}"] = _LOST_DEFAULTS.format(name, ", ".join(sorted(defaults.values())))
    return reasons


def _defaults(text: str) -> dict[str, str]:
    """Return the defaults per GPU in the list *text*, as written there."""
    words = {word.partition("=")[0].strip().lower(): word.strip() for word in text.split(",")}
    return {key: word for key, word in words.items() if key in _PER_GPU_DEFAULTS}
