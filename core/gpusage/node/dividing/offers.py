"""In which ways this host divides a GPU, as its control daemon's version has it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from gpusage.node.dividing import PROGRAM

_LIMIT_S = 12
"""`gpusage-mps` gives up earlier, where a GPU hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """What a host offers.

    Attributes:
        version: The control daemon's, ``13010`` for example; empty where it names none.
        divisions: Of `Division`; ``whole`` alone where the host has no MPS.
    """

    version: str = ""
    divisions: tuple[str, ...] = ("whole",)


def host_offers() -> Offers:
    """Return what this host offers; a host that cannot be asked has no MPS."""
    try:
        done = subprocess.run([PROGRAM, "offers"], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Offers()
    return parse_offers(done.stdout)


def parse_offers(text: str) -> Offers:
    """Return what the lines of `gpusage-mps offers` say; other lines are left out."""
    words = [line.split() for line in text.splitlines()]
    pairs = [(pair[0], pair[1]) for pair in words if len(pair) == len(("name", "value"))]
    version = next((value for name, value in pairs if name == "version"), "")
    divisions = tuple(value for name, value in pairs if name == "division")
    return Offers(version=version, divisions=divisions or ("whole",))
