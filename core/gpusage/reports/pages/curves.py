"""Plots of slowdown against share, a small plot per GPU, as wide as a telephone's screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import ceil

from gpusage_hooks.types import Price

WIDTH, HEIGHT = 340, 230
LEFT, RIGHT, TOP, BOTTOM = 40, 14, 28, 42
LEAST_PERCENT, WHOLE_PERCENT = 20, 100
PERCENTS = tuple(range(LEAST_PERCENT, WHOLE_PERCENT + 1, 5))
"""Shares whose prices a plot needs."""
MARKED_PERCENTS = (25, 50, 75)
LEAST_TOP, MOST_TOP = 2, 8
"""Limits of the scale: a line that is nearly flat looks flat, and a steep one leaves room for the others."""
COLOUR, BAND = "#27609c", "#c9dcef"
CAPTION = (
    "Slowdown against share, alone on the share: times as long as a step on the whole GPU. "
    "The band holds 9 of 10 runs. "
    "On the dashed line a share saves no GPU time: half of a GPU makes a step twice as long."
)


def plots(curves: Iterable[Sequence[Price]]) -> str:
    """Return a plot per GPU, side by side where there is room, all with the same scale.

    Args:
        curves: Prices of each GPU by rising share.
    """
    # The same scale for all, so that plots side by side compare.
    drawn = list(curves)
    top = top_of(drawn)
    return f"<div class='plots'>{''.join(plot(curve, top) for curve in drawn)}</div>"


def top_of(curves: Iterable[Sequence[Price]]) -> int:
    """Return the slowdown at the upper end of a scale on which all *curves* have room."""
    highest = max((price.slowdown.high for curve in curves for price in curve), default=1.0)
    return min(max(ceil(highest), LEAST_TOP), MOST_TOP)


def plot(curve: Sequence[Price], top: int) -> str:
    """Return the plot of a GPU's prices as a picture; values above *top* lie on its upper edge."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' role='img'>"
        f"{panel(curve, top)}</svg>"
    )


def panel(curve: Sequence[Price], top: int) -> str:
    """Return the drawing of `plot` as a part of a picture."""
    title = escape(curve[0].gpu)
    # The band is one outline: along the low ends from left to right, and back along the high ends.
    low = [_point(price.share_percent, price.slowdown.low, top) for price in curve]
    high = [_point(price.share_percent, price.slowdown.high, top) for price in reversed(curve)]
    value = [_point(price.share_percent, price.slowdown.value, top) for price in curve]
    marks = ""
    for price in curve:
        if price.share_percent in MARKED_PERCENTS:
            percent, slowdown = price.share_percent, price.slowdown
            x, y = _x(percent), _y(slowdown.value, top)
            words = f"{percent} %: {slowdown.value:.2f}x ({slowdown.low:.2f}-{slowdown.high:.2f})"
            marks += (
                f"<g fill='{COLOUR}'><title>{words}</title><circle cx='{x:.1f}' cy='{y:.1f}' r='4'/>"
                f"<text x='{x + 6:.1f}' y='{y - 7:.1f}' font-size='13' fill='#222'>{slowdown.value:.2f}x</text></g>"
            )

    # Slowdown times share is the GPU time: on this line it is that of the whole GPU.
    inside = (percent for percent in PERCENTS if WHOLE_PERCENT / percent <= top)
    proportion = [_point(percent, WHOLE_PERCENT / percent, top) for percent in inside]
    return (
        f"<g font-family='system-ui,sans-serif'><title>{title}: slowdown against share</title>"
        f"<text x='{LEFT}' y='16' font-size='14' font-weight='bold'>{title}</text>{_axes(top)}"
        f"<path d='M{'L'.join([*low, *high])}Z' fill='{BAND}' fill-opacity='.7'/>"
        f"<path d='M{'L'.join(proportion)}' stroke='#888' stroke-dasharray='4 4' fill='none'/>"
        f"<path d='M{'L'.join(value)}' stroke='{COLOUR}' stroke-width='2' fill='none'/>{marks}</g>"
    )


def _axes(top: int) -> str:
    left, right, foot = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = "".join(
        f"<path d='M{left} {_y(times, top):.1f}H{right}' stroke='#ddd'/>"
        f"<text x='{left - 6}' y='{_y(times, top) + 4:.1f}' text-anchor='end'>{times}x</text>"
        for times in range(1, top + 1)
    )
    shares = "".join(
        f"<text x='{_x(percent):.1f}' y='{foot + 17}' text-anchor='middle'>{percent} %</text>"
        for percent in (*MARKED_PERCENTS, WHOLE_PERCENT)
    )
    words = f"<text x='{(left + right) / 2:.0f}' y='{HEIGHT - 8}' text-anchor='middle'>share of the GPU</text>"
    return f"<g font-size='12' fill='#444'>{lines}{shares}{words}</g>"


def _point(percent: float, times: float, top: int) -> str:
    return f"{_x(percent):.1f} {_y(times, top):.1f}"


def _x(percent: float) -> float:
    # Room at both ends for the marks and their labels.
    reach = (percent - LEAST_PERCENT) / (WHOLE_PERCENT - LEAST_PERCENT)
    return LEFT + 4 + reach * (WIDTH - LEFT - RIGHT - 12)


def _y(times: float, top: int) -> float:
    # Clamped to the scale, so that an interval's end beyond it leaves no picture.
    reach = (min(max(times, 1.0), top) - 1.0) / (top - 1.0)
    return HEIGHT - BOTTOM - reach * (HEIGHT - TOP - BOTTOM)
