"""Units at the edges: inside, everything is bytes, seconds, FLOP and shares of 0 to 1."""

from __future__ import annotations

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9
MHZ = 10**6
TERA = 10**12
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WHOLE_PERCENT = 100
LONG_S = 600.0
"""From here on people read minutes."""
_TIMES = ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (LONG_S, 1.0, "s"), (HOUR_S, 1 / 60, "min"))


def gib(memory_bytes: float) -> str:
    """Return *memory_bytes* as people read it, for example ``6.1 GiB``."""
    return f"{memory_bytes / GIB:.1f} GiB"


def percent(share: float) -> str:
    """Return a *share* of 0 to 1 as people read it, for example ``31 %``."""
    return f"{100 * share:.0f} %"


def time_scale(time_s: float) -> tuple[float, str]:
    """Return how many units a second has, and the unit's name: that in which people read a duration of *time_s*."""
    return next(((scale, unit) for limit_s, scale, unit in _TIMES if time_s < limit_s), (1 / HOUR_S, "h"))


def seconds(time_s: float) -> str:
    """Return a duration as people read it, for example ``197 ms``."""
    scale, unit = time_scale(time_s)
    value = time_s * scale
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"  # no exponent
