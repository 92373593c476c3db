"""What a partition gives by default for each GPU, and a job loses whose GPU became a share.

Tried on 22.05: with DefCpuPerGPU=4 a job of one GPU gets 4 CPUs; rewritten to a share, which counts as no GPU, it gets
1. With DefMemPerGPU it gets the site's other default: too little ends it, all of the node's memory keeps others out. So
in such partitions nothing is shared. A partition's own defaults stand in place of slurm.conf's, key by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpusage_slurm.scontrol import Line

_WORDS = ("defcpupergpu", "defmempergpu")
_REASON = "a share would lose what partition {} gives for each GPU ({})"


def losses(settings: Mapping[str, str], partitions: Iterable[Line]) -> dict[str, str]:
    """Return the partitions where a share would lose defaults, each with why no GPU is shared there.

    Args:
        settings: slurmctld's, by their names in lower case.
        partitions: As `scontrol.partitions` returns them.
    """
    everywhere = _defaults(settings.get("jobdefaults", ""))
    reasons = {}
    for partition in partitions:
        name, given = partition["PartitionName"], everywhere | _defaults(partition.get("JobDefaults", ""))
        if given:
            reasons[f"partition={name}"] = _REASON.format(name, ", ".join(sorted(given.values())))
    return reasons


def _defaults(text: str) -> dict[str, str]:
    """Return the defaults for each GPU in the list *text*, as they stand there."""
    words = {word.partition("=")[0].strip().lower(): word.strip() for word in text.split(",")}
    return {key: word for key, word in words.items() if key in _WORDS}
