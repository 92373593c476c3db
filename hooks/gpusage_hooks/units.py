"""Units at the edges: inside, everything is bytes, seconds, FLOP and shares of 0 to 1."""

from __future__ import annotations

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9
MHZ = 10**6
TERA = 10**12
HOUR_S = 3600.0
WHOLE_PERCENT = 100


def gib(memory_bytes: float) -> str:
    """Return *memory_bytes* as people read it, for example ``6.1 GiB``."""
    return f"{memory_bytes / GIB:.1f} GiB"


def percent(share: float) -> str:
    """Return a *share* of 0 to 1 as people read it, for example ``31 %``."""
    return f"{100 * share:.0f} %"


def seconds(time_s: float) -> str:
    """Return a duration as people read it, for example ``197 ms``."""
    for limit_s, scale, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if time_s < limit_s:
            return f"{time_s * scale:.3g} {unit}"
    return f"{time_s:.3g} s"
