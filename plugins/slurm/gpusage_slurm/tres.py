"""A list of trackable resources as Slurm writes it: ``gres:gpu:1``, ``gres/gpu:v100=2``, ``cpu:4,gres/gpu=1``.

Up to 23.02 a generic resource begins with ``gres:``, from 23.11 on with ``gres/``; ``=`` may stand before the count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_GENERIC = re.compile(r"gres[:/]")
_COUNT = re.compile(r"(\d{1,9})([kmgtp]?)", re.IGNORECASE)
_SUFFIXES = "kmgtp"
_AMOUNT = re.compile(r"(?P<number>[0-9]{1,15}(?:\.[0-9]{0,15})?)(?P<unit>[KMGTP]?)", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
REPLACING_VERSION, REPLACING_PREFIX = "23.11", "gres/"
"""From this version on, known by its prefix, slurmctld puts a GPU in place of a waiting job's share or slice. Before,
it refuses; beside a slice it accepts a GPU whose type is named, but the job then asks for both, for good."""
SHARES = ("mps", "shard")
"""Names of the resources that are shares of a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tres:
    """One resource of a list.

    Attributes:
        text: As it stood in the list.
        name: Without ``gres/``: ``gpu``, ``mps``, ``nvme``, ``cpu``.
        generic: Whether it is a generic resource.
        kind: Its type, for example ``v100``.
        count: How many; ``None`` where the count is not one.
    """

    text: str
    name: str
    generic: bool
    kind: str | None = None
    count: int | None = 1


@lru_cache(maxsize=256)
def parse_tres(text: str) -> tuple[Tres, ...]:
    """Return the resources in a comma-separated list; never fails, for Slurm itself reports a wrong list.

    One submission's few lists are looked at from many sides.
    """
    return tuple(_parse(word.strip()) for word in text.split(",") if word.strip() and word.strip() != "(null)")


def is_gpu(resource: Tres) -> bool:
    """Return whether *resource* is whole GPUs."""
    return resource.generic and resource.name == "gpu"


def is_share(resource: Tres) -> bool:
    """Return whether *resource* is a share of a GPU."""
    return resource.generic and resource.name in SHARES


def without_gpus(text: str) -> str:
    """Return the list *text* with its GPUs left out, everything else as it stood."""
    return ",".join(resource.text for resource in parse_tres(text) if not is_gpu(resource))


def _parse(text: str) -> Tres:
    prefix = _GENERIC.match(text)
    name, *rest = re.split(r"[:=]", text[prefix.end() :] if prefix else text)
    generic, name = prefix is not None, name.lower()
    if not rest:
        return Tres(text=text, name=name, generic=generic)

    # ``gpu:v100`` is one of this type; a word that begins with a digit would be a count.
    if len(rest) == 1 and not rest[0][:1].isdigit():
        return Tres(text=text, name=name, generic=generic, kind=rest[0] or None)

    count, match = None, _COUNT.fullmatch(rest[-1])
    if match and rest[-1].isascii():
        power = _SUFFIXES.index(match[2].lower()) + 1 if match[2] else 0
        count = int(match[1]) << 10 * power
    return Tres(text=text, name=name, generic=generic, kind=":".join(rest[:-1]) or None, count=count)


def parse_mib(text: str) -> float | None:
    """Return the MiB of ``64G``; ``None`` for a text that is no amount."""
    match = _AMOUNT.fullmatch(text)
    return float(match["number"]) * _MIB[match["unit"].upper()] if match else None
