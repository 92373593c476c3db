"""Predicted figures as people read them: the value in a unit that suits it, and the interval around it."""

from __future__ import annotations

from gpusage_hooks.types import Interval
from gpusage_hooks.units import GIB, LONG_S, MIB, time_scale

_COUNTS = ((1e3, 1.0, ""), (1e6, 1e-3, "k"), (1e9, 1e-6, "M"), (1e12, 1e-9, "G"), (float("inf"), 1e-12, "T"))


def time(figure: Interval) -> str:
    """Return seconds as, for example, ``197 ms (170-231)``."""
    scale, unit = time_scale(figure.value)
    return f"{number(figure.value * scale)} {unit} {_ends(figure, scale)}"


def seconds(value_s: float) -> str:
    """Return seconds without an interval, for example ``197 ms`` or, from ten minutes on, ``1 h 5 min``."""
    if value_s >= LONG_S:
        return duration(value_s)
    scale, unit = time_scale(value_s)
    return f"{number(value_s * scale)} {unit}"


def duration(time_s: float) -> str:
    """Return how long a run takes, as people read it: ``45 s``, ``12 min``, ``1 h 5 min``."""
    minutes = round(time_s / 60)
    if time_s < 60:  # seconds of a minute
        return f"{max(0.0, time_s):.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"  # of an hour


def size(value_bytes: float) -> str:
    """Return bytes without an interval, for example ``6.1 GiB`` or ``98 MiB``."""
    return f"{value_bytes / GIB:.1f} GiB" if abs(value_bytes) >= GIB else f"{value_bytes / MIB:.0f} MiB"


def memory(figure: Interval) -> str:
    """Return bytes as, for example, ``6.1 GiB (5.6-6.9)``."""
    return f"{figure.value / GIB:.1f} GiB ({figure.low / GIB:.1f}-{figure.high / GIB:.1f})"


def share(figure: Interval) -> str:
    """Return a share of 0 to 1 as, for example, ``31 % (24-39)``."""
    return f"{100 * figure.value:.0f} % ({100 * figure.low:.0f}-{100 * figure.high:.0f})"


def plain(figure: Interval, unit: str = "") -> str:
    """Return a figure with *unit* right behind it, for example ``1.08x (0.95-1.23)``; no ends where they are exact."""
    exact = figure.low == figure.value == figure.high
    return f"{number(figure.value)}{unit}" + ("" if exact else f" {_ends(figure, 1.0)}")


def number(value: float) -> str:
    """Return *value* with three digits, never with an exponent."""
    digits = next((digits for limit, digits in ((9.995, 2), (99.95, 1)) if abs(value) < limit), 0)
    return f"{value:.{digits}f}"


def count(value: float) -> str:
    """Return a large count with the SI letter behind it, for example ``25.6 M``."""
    scale, suffix = next((scale, suffix) for limit, scale, suffix in _COUNTS if abs(value) < limit)
    return f"{number(value * scale) if suffix else f'{value:g}'} {suffix}".rstrip()


def _ends(figure: Interval, scale: float) -> str:
    return f"({number(figure.low * scale)}-{number(figure.high * scale)})"
