"""What a partition gives by default for each GPU, and a job loses whose GPU became a share.

Tried on 22.05: with DefCpuPerGPU=4 a job of one GPU gets 4 CPUs; rewritten to a share, which counts as no GPU, it gets
1. With DefMemPerGPU it gets the site's other default: too little ends it, all of the node's memory keeps others out. So
in such partitions nothing is shared. A partition's own defaults stand in place of slurm.conf's, key by key.
"""

from __future__ import annotations

from collections.abc import Mapping

_WORDS = ("defcpupergpu", "defmempergpu")
_REASON = "a share would lose what partition {} gives for each GPU ({})"


def losses(settings: Mapping[str, str], partitions: str) -> dict[str, str]:
    """Return the partitions where a share would lose defaults, each with why no GPU is shared there.

    Args:
        settings: slurmctld's, by their names in lower case.
        partitions: What `scontrol show partitions --oneliner` says.
    """
    everywhere = _defaults(settings.get("jobdefaults", ""))
    found = {}
    for line in partitions.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name, given = words.get("PartitionName"), everywhere | _defaults(words.get("JobDefaults", ""))
        if name and given:
            found[name] = _REASON.format(name, ", ".join(sorted(given.values())))
    return found


def _defaults(text: str) -> dict[str, str]:
    """Return the defaults for each GPU in the list *text*, as they stand there."""
    words = {word.partition("=")[0].strip().lower(): word.strip() for word in text.split(",")}
    return {key: word for key, word in words.items() if key in _WORDS}
