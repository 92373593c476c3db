"""Shares and what they cost, in words for people."""

from __future__ import annotations

import math
import re

from gpusage_hooks.types import Interval

_PARTS = {25: "a quarter of", 33: "a third of", 50: "half", 75: "three quarters of"}
_SPOKEN_WITH_A_VOWEL = re.compile(r"[aeio8]|[fhlmnrsx][0-9]|rtx", re.IGNORECASE)


def part_of(share_percent: int, gpu: str) -> str:
    """Return a share in words: ``half a v100``, ``a third of an h100``, ``40 % of a t4``."""
    part = _PARTS.get(share_percent, f"{share_percent} % of")
    return f"{part} {'an' if _SPOKEN_WITH_A_VOWEL.match(gpu) else 'a'} {gpu}"


def cost(slowdown: Interval) -> str:
    """Return what a slowdown costs in percent, with its interval: ``9 % (3-18)``."""
    return f"{percent(slowdown.value)} ({_hundredths(slowdown.low)}-{_hundredths(slowdown.high)})"


def percent(slowdown: float) -> str:
    """Return what a slowdown costs, for people: ``9 %`` for 1.09."""
    return f"{_hundredths(slowdown)} %"


def _hundredths(slowdown: float) -> str:
    return f"{100 * (slowdown - 1):.0f}" if math.isfinite(slowdown) else "unknown"
